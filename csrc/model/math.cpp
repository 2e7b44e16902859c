#include "model/math.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace qwenmtp::model {

namespace {

/** Inverse frequencies [rotary_dim / 2] and the amplitude of cos and sin. */
std::pair<std::vector<float>, float> frequencies(const Rope& rope) {
  int half = rope.rotary_dim / 2;
  std::vector<float> freq(half);
  for (int j = 0; j < half; j++) {
    freq[j] =
        static_cast<float>(std::pow(rope.theta, -2.0 * j / rope.rotary_dim));
  }
  if (!rope.yarn) {
    return {freq, 1.0f};
  }
  const auto& y = *rope.yarn;
  auto dim_of = [&](double rotations) {
    return rope.rotary_dim *
           std::log(
               y.original_max_position / (2 * std::numbers::pi * rotations)) /
           (2 * std::log(rope.theta));
  };
  double low = dim_of(y.beta_fast);
  double high = dim_of(y.beta_slow);
  if (y.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.rotary_dim - 1.0);
  for (int j = 0; j < half; j++) {
    double width = low == high ? 0.001 : high - low;
    double ramp = std::clamp((j - low) / width, 0.0, 1.0);
    freq[j] =
        static_cast<float>(ramp * (freq[j] / y.factor) + (1 - ramp) * freq[j]);
  }
  auto mscale = [&](double m) {
    return y.factor <= 1 ? 1.0 : 0.1 * m * std::log(y.factor) + 1;
  };
  double amplitude = mscale(1);
  if (y.attention_factor) {
    amplitude = *y.attention_factor;
  } else if (y.mscale != 0 && y.mscale_all_dim != 0) {
    amplitude = mscale(y.mscale) / mscale(y.mscale_all_dim);
  }
  return {freq, static_cast<float>(amplitude)};
}

} // namespace

RopeTable rope_table(const Rope& rope, int first, int n, int step) {
  auto [freq, amplitude] = frequencies(rope);
  int half = static_cast<int>(freq.size());
  std::vector<float> cosines(static_cast<size_t>(n) * half);
  std::vector<float> sines(cosines.size());
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < half; j++) {
      float angle = static_cast<float>(first + i * step) * freq[j];
      cosines[i * half + j] = std::cos(angle) * amplitude;
      sines[i * half + j] = std::sin(angle) * amplitude;
    }
  }
  return {
      mx::array(cosines.begin(), {n, half}),
      mx::array(sines.begin(), {n, half})};
}

} // namespace qwenmtp::model
