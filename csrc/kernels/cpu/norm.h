/** Normalisations over one contiguous vector of floats. Sums go through sixteen
 *  lanes and the tree of sum(). */
#pragma once

#include "kernels/cpu/simd.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

QWENMTP_INLINE float sum_of_squares(const float* v, int n) {
  F acc = splat(0.0f);
  for_lanes(n, [&](int i, int count) {
    F x = load_n(v + i, count);
    acc = fma(x, x, acc);
  });
  return sum(acc);
}

/** to = v / sqrt(mean(v^2) + eps), rounded to T, times w, rounded to T. */
template <typename T>
QWENMTP_INLINE void rms_norm(
    const float* v,
    const float* w,
    float* to,
    int n,
    float eps) {
  const float mean = sum_of_squares(v, n) / static_cast<float>(n);
  const F scale = splat(1.0f / __builtin_sqrtf(mean + eps));
  for_lanes(n, [&](int i, int count) {
    F unit = rounded<T>(load_n(v + i, count) * scale);
    store_n(to + i, rounded<T>(unit * load_n(w + i, count)), count);
  });
}

/** a * b + c in T: one rounding in float, product and sum rounded in bfloat16.
 */
template <typename T>
QWENMTP_INLINE F mul_add(F a, F b, F c) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return fma(a, b, c);
  } else {
    return rounded<T>(rounded<T>(a * b) + c);
  }
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
