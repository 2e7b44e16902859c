/** Per-layer n-gram embedding (model.md 10): table rows in, a gated and
 *  convolved addition to the residual streams out. */
#pragma once

#include <memory>
#include <span>
#include <string>

#include "model/config.h"
#include "model/weights.h"
#include "ple/stager.h"
#include "state/trunk_state.h"

namespace qwenmtp::model {

class PleLayer {
 public:
  PleLayer(
      Weights& weights,
      const Config& config,
      const std::string& module,
      bool one_centred,
      std::shared_ptr<ple::Stager> stager);

  state::PleState initial_state() const;
  /** The addition to x [n, C * H] for tokens `ids`; advances `state`. Reads
   *  the table before it builds any graph: PleReadError changes nothing. */
  mx::array forward(
      const mx::array& x,
      std::span<const int32_t> ids,
      state::PleState& state,
      std::optional<state::PleWindow>* window) const;
  state::PleState commit(const state::PleWindow& window, int keep) const;

 private:
  int count_, hidden_, kernel_, dilation_, dim_, history_;
  int64_t eos_;
  double eps_;
  mx::Dtype dtype_;
  std::shared_ptr<ple::Stager> stager_;
  Linear key_;           // [C * H, E]
  Linear value_;         // [H, E]
  mx::array norm_key_;   // [C * H], effective
  mx::array norm_query_; // [C * H], effective
  mx::array norm_conv_;  // [C * H], effective
  mx::array conv_;       // [kernel, C * H] float32
};

} // namespace qwenmtp::model
