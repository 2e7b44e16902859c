/** Gated DeltaNet (model.md 7): projections, causal convolution, delta rule,
 *  gated norm. Rows in, rows out; the layer's state is passed in. */
#pragma once

#include <string>
#include <vector>

#include "kernels/gdn.h"
#include "model/config.h"
#include "model/weights.h"
#include "state/trunk_state.h"

namespace qwenmtp::model {

class GdnLayer {
 public:
  GdnLayer(Weights& weights, const Config& config, const std::string& module);

  state::GdnState initial_state() const;
  /** u [n, H] -> [n, H]; advances `state` by n rows. With `window`, keeps what
   *  commit() needs. */
  mx::array forward(
      const mx::array& u,
      state::GdnState& state,
      std::optional<state::GdnWindow>* window) const;
  /** The state after only the first `keep` rows of the window. */
  state::GdnState commit(const state::GdnWindow& window, int keep) const;
  /** The same state with no rows waiting. */
  state::GdnState settle(const state::GdnState& state) const;

 private:
  mx::Dtype dtype_;
  Linear in_; // [qkv; z; a; b]
  kernels::GdnWeights weights_;
  Linear out_; // [H, Hv * Dv]
};

/** A convolution weight [ch, 1, k] or [ch, k, 1] as [k, ch] float32. */
mx::array conv_weight(
    Weights& weights,
    const std::string& released_name,
    const std::string& converted_name,
    int channels,
    int kernel);

} // namespace qwenmtp::model
