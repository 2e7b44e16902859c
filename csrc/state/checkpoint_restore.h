/** ModelState out of a QWMTKV02 file. The bytes are checkpoint.h's, the
 *  invariants model_state.h's. */
#pragma once

#include <optional>

#include "state/checkpoint.h"
#include "state/model_state.h"

namespace qwenmtp::state {

/** The state of a file whose header was parsed with geometry_of(empty). empty
 *  has a history exactly if the file's mode is MTP. spare_rows: room in the
 *  attention slabs for the coming turn. Throws CheckpointError; corrupt, reason
 *  "invariant", for a state that breaks the rules of check_invariants.
 *  With boundary the state is rewound to that record. */
ModelState read_state(
    const CheckpointFile& file,
    const Header& header,
    ModelState empty,
    int spare_rows,
    std::optional<size_t> boundary = std::nullopt,
    const std::atomic<bool>* cancel = nullptr);

} // namespace qwenmtp::state
