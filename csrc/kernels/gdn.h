/** Gated DeltaNet between its two projections. */
#pragma once

#include "kernels/kernel.h"

namespace qwenmtp::kernels {

struct GdnWeights {
  array taps; // [kernel, channels], oldest row's tap first; channels = 2 Hk Dk
              // + Hv Dv
  array decay_rate; // [Hv], exp(A_log)
  array dt_bias;    // [Hv]
  array norm;       // [Dv]
  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0; // a multiple of 16, at most 256
  int value_dim = 0;
  float eps = 0;

  int channels() const {
    return 2 * key_heads * key_dim + value_heads * value_dim;
  }
  /** Of a projected row: [channels | z Hv Dv | a Hv | b Hv]. */
  int width() const {
    return channels() + value_heads * (value_dim + 2);
  }
};

/** What a sequence leaves. On a GPU the last window waits: its first `keep`
 * rows are applied by the launch that reads the state next, so that a round
 * reads and writes the state once. */
struct GdnStates {
  array conv; // [kernel - 1, channels] in the activation type, oldest row first
  array delta;                // [Hv, Dv, Dk] float32
  std::vector<array> waiting; // empty, or the window's proj and what the kernel
                              // made of it
  int keep = 0;
};

struct GdnOutput {
  array y;                       // [n, Hv * Dv]
  GdnStates states;              // after all rows
  std::vector<GdnStates> before; // of each launch's rows, which wait; n in all
};

/** Convolution, SiLU, norms, gates, the delta rule row by row, and the gated
 *  norm, for proj [n, width]. */
GdnOutput gdn(
    const array& proj,
    const GdnStates& states,
    const GdnWeights& w,
    mlx::core::StreamOrDevice s = {});

/** The states after the first `keep` rows of a window, `before` of its gdn():
 *  the bits of gdn() over those rows alone. */
GdnStates gdn_commit(
    const std::vector<GdnStates>& before,
    int keep,
    const GdnWeights& w,
    mlx::core::StreamOrDevice s = {});

/** The same states with no rows waiting. */
GdnStates gdn_settled(
    const GdnStates& states,
    const GdnWeights& w,
    mlx::core::StreamOrDevice s = {});

} // namespace qwenmtp::kernels
