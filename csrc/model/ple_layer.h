/** Per-layer n-gram embedding (model.md 10): table rows in, a gated and
 *  convolved addition to the residual streams out. */
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/ple.h"
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

  /** Starts reading the rows of `ids`, which may follow `state`. */
  void expect(std::span<const int32_t> ids, const state::PleState& state)
      const {
    stager_->request(ids, state.ids);
  }
  /** The same behind the ids `before`, of any number. */
  void expect_behind(
      std::span<const int32_t> before,
      std::span<const int32_t> ids) const;
  ple::Stager& stager() const {
    return *stager_;
  }

 private:
  /** The ids that the next token hashes with after `keep` of the window. */
  std::vector<int64_t> ids_after(const state::PleWindow& window, int keep)
      const;

  int dim_, history_;
  int64_t eos_;
  mx::Dtype dtype_;
  std::shared_ptr<ple::Stager> stager_;
  std::vector<kernels::Matrix> in_; // key [C * H, E], value [H, E]
  kernels::PleWeights weights_;
};

} // namespace qwenmtp::model
