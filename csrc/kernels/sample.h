/** Candidates of logits rows, so that a host reads some hundred bytes instead
 * of a vocabulary. */
#pragma once

#include "kernels/kernel.h"

namespace qwenmtp::kernels {

/** Of scaled rows s = float(logit) * scale, one multiplication. Where a row has
 *  NaN or +inf its sum is NaN and the rest unspecified. */
struct SampleOutput {
  array top;   // [n, m] float32: the m largest, by id
  array ids;   // [n, m] int32, ascending; of equal values the lowest ids
  array ties;  // [n, 1] int32: values of the row equal to the smallest of top
  array total; // [n, 2] float32: the largest; the sum of base/exp_sum.h
};

/** logits [n, V] in float32, bfloat16 or float16; 1 <= m <= V. */
SampleOutput sample(
    const array& logits,
    float scale,
    int m,
    mlx::core::StreamOrDevice s = {});

/** How a token is drawn from candidates: the k best, then the nucleus, top_p
 *  in (0, 1) or 1 for none. */
struct PickLaw {
  int k;
  float top_p;
};

/** The token [1] int32 that the uniform u draws from the one row of
 *  `candidates`: the law of decode.md 1.4 and 2, but in float32, so that a u at
 *  an edge may fall to the other side. Of a row whose sum is NaN any of its
 *  ids. */
array pick(
    const SampleOutput& candidates,
    PickLaw law,
    float u,
    mlx::core::StreamOrDevice s = {});

} // namespace qwenmtp::kernels
