/** Gated DeltaNet (model.md 7): projections, causal convolution, delta rule,
 *  gated norm. Rows in, rows out; the layer's state is passed in. */
#pragma once

#include <string>

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

 private:
  int key_heads_, value_heads_, key_dim_, value_dim_, kernel_;
  double eps_;
  mx::Dtype dtype_;
  Linear in_qkv_;        // [2 * Hk * Dk + Hv * Dv, H], rows q, k, v
  Linear in_z_;          // [Hv * Dv, H]
  Linear in_a_;          // [Hv, H]
  Linear in_b_;          // [Hv, H]
  mx::array conv_;       // [kernel, channels] float32
  mx::array decay_rate_; // [Hv] float32, exp(A_log)
  mx::array dt_bias_;    // [Hv]
  mx::array norm_;       // [Dv]
  Linear out_;           // [H, Hv * Dv]
};

/** Depthwise causal convolution over rows [tail + n, ch] with taps `dilation`
 *  rows apart, then SiLU; w [kernel, ch] float32. One rounding before SiLU. */
mx::array causal_conv_silu(
    const mx::array& rows,
    const mx::array& w,
    int dilation);

/** A convolution weight [ch, 1, k] or [ch, k, 1] as [k, ch] float32. */
mx::array conv_weight(
    Weights& weights,
    const std::string& released_name,
    const std::string& converted_name,
    int channels,
    int kernel);

} // namespace qwenmtp::model
