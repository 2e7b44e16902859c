/** The nodes of a forward's graph and the bytes that go through them, for
 *  `qwenmtp bench`. Counts buffers, not what kernels say of themselves. */
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "state/model_state.h"

namespace qwenmtp::decode {

struct NodeTraffic {
  int64_t nodes = 0;
  int64_t bytes = 0; // inputs and outputs; a gathered operand by rows taken
};

/** Of one node name each, for a forward of ids over a copy of the state; of a
 *  draft of the one id behind the state's last hidden row if draft is set.
 *  Evaluates. Throws InvalidArgument for a draft without that row. */
std::map<std::string, NodeTraffic> traffic(
    const model::Model& model,
    const state::ModelState& state,
    std::span<const int32_t> ids,
    bool draft);

} // namespace qwenmtp::decode
