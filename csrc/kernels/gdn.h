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
};

/** Rows of the projections. */
struct GdnRows {
  array qkv; // [n, channels]
  array a;   // [n, Hv]
  array b;   // [n, Hv]
};

struct GdnStates {
  array conv; // [kernel - 1, channels] in the activation type, oldest row first
  array delta; // [Hv, Dv, Dk] float32
};

struct GdnOutput {
  array y; // [n, Hv * Dv]
  GdnStates states;
};

/** Convolution, SiLU, norms, gates, the delta rule row by row, and the norm
 * gated by z [n, Hv * Dv]. */
GdnOutput gdn(
    const GdnRows& rows,
    const array& z,
    const GdnStates& states,
    const GdnWeights& w,
    mlx::core::StreamOrDevice s = {});

/** The states after the first `keep` of the rows: the bits of gdn() over those
 * alone. */
GdnStates gdn_commit(
    const GdnRows& rows,
    int keep,
    const GdnStates& states,
    const GdnWeights& w,
    mlx::core::StreamOrDevice s = {});

} // namespace qwenmtp::kernels
