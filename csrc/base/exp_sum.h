/** The sum of exp(s - max) over a row of scaled logits, in one arithmetic: the
 *  sampler's pass, the CPU body of `sample` and metal/sample.metal give the
 * same bits, so it does not matter which of them read a row. Blocks of
 * kExpBlock values, each relative to its own maximum, then the blocks relative
 * to the row's; 32 lanes both times, folded in halves; every operation rounds
 * by itself. Templates over a compiler's vector type F of floats and I of
 *  integers, with at most 16 elements, so that each caller compiles them for
 *  its own registers. No standard library. */
#pragma once

namespace qwenmtp {

inline constexpr int kExpBlock = 512;
inline constexpr int kExpLanes = 32;

/** exp for x <= 0, relative error below 3e-7; 1.6e-38 for anything below -87. A
 *  NaN stays one. */
template <typename F, typename I>
[[gnu::always_inline]] inline F exp_nonpositive(F x) {
  constexpr float kRound = 12582912.0f; // 1.5 * 2^23: adding it rounds
  const F low = F{} - 87.0f;
  x = x < low ? low : x;
  const F n = (x * 1.44269504f + kRound) - kRound;
  const F r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const I exponent = (__builtin_convertvector(n, I) + 127) << 23;
  return p * (F)exponent;
}

/** Sum of term(i), which makes the vector of elements i and following, for
 *  i < n; lane l takes the elements that leave l. */
template <typename F, typename Term>
[[gnu::always_inline]] inline float sum_in_lanes(int n, Term term) {
  constexpr int kWidth = sizeof(F) / sizeof(float);
  constexpr int kParts = kExpLanes / kWidth;
  F sum[kParts] = {};
  for (int i = 0; i < n; i += kExpLanes) {
    for (int j = 0; j < kParts; j++) {
      sum[j] += term(i + j * kWidth);
    }
  }
  float lanes[kExpLanes];
  __builtin_memcpy(lanes, sum, sizeof lanes);
  for (int half = kExpLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; l++) {
      lanes[l] += lanes[l + half];
    }
  }
  return lanes[0];
}

/** Elements i and following of v [n], `rest` behind its end. */
template <typename F>
[[gnu::always_inline]] inline F load_or(
    const float* v,
    int i,
    int n,
    float rest) {
  constexpr int kWidth = sizeof(F) / sizeof(float);
  F x = F{} + rest;
  const int count = n - i < kWidth ? n - i : kWidth;
  if (count > 0) {
    __builtin_memcpy(&x, v + i, count * sizeof(float));
  }
  return x;
}

/** Of one block s [kExpBlock] whose largest value is max, -inf behind the end
 *  of a short row. NaN where the block has NaN or +inf. */
template <typename F, typename I>
[[gnu::always_inline]] inline float exp_sum_of_block(
    const float* s,
    float max) {
  const float base = max == -__builtin_inff() ? 0.0f : max;
  return sum_in_lanes<F>(kExpBlock, [&](int i) {
    F x;
    __builtin_memcpy(&x, s + i, sizeof x);
    return exp_nonpositive<F, I>(x - base);
  });
}

/** Of a row: from its blocks' maxima and sums, and the largest maximum. */
template <typename F, typename I>
[[gnu::always_inline]] inline float exp_sum_of_row(
    const float* block_max,
    const float* block_sum,
    int n_blocks,
    float max) {
  return sum_in_lanes<F>(n_blocks, [&](int i) {
    return load_or<F>(block_sum, i, n_blocks, 0.0f) *
           exp_nonpositive<F, I>(load_or<F>(block_max, i, n_blocks, max) - max);
  });
}

} // namespace qwenmtp
