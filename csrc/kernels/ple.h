/** Per-layer n-gram embedding after its two projections. */
#pragma once

#include "kernels/kernel.h"

namespace qwenmtp::kernels {

struct PleWeights {
  array norm_key;   // [C * H], effective weight
  array norm_query; // [C * H]
  array norm_conv;  // [C * H]
  array taps;       // [kernel, C * H], oldest row's tap first
  int streams = 0;  // C
  int dilation = 0;
  float eps = 0;
};

struct PleOutput {
  array added;  // [n, C * H], what x gains
  array normed; // [n, C * H], the convolution's input
  array conv;   // the state after the n rows
};

/** Gate of x [n, C * H] by key [n, C * H] on value [n, H], its norm and dilated
 *  convolution. conv [(kernel - 1) * dilation, C * H]: the rows of `normed`
 * before. */
PleOutput ple(
    const array& x,
    const array& key,
    const array& value,
    const array& conv,
    const PleWeights& w,
    mlx::core::StreamOrDevice s = {});

} // namespace qwenmtp::kernels
