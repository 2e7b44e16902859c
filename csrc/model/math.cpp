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

mx::array rms_norm(const mx::array& x, const mx::array& weight, double eps) {
  return mx::multiply(
      mx::fast::rms_norm(x, std::nullopt, static_cast<float>(eps)),
      weight);
}

mx::array grouped_rms_norm(
    const mx::array& x,
    const mx::array& weight,
    int groups,
    double eps) {
  auto parts = mx::unflatten(x, -1, {groups, x.shape(-1) / groups});
  return mx::flatten(
      rms_norm(
          parts,
          mx::reshape(weight, {groups, weight.shape(0) / groups}),
          eps),
      -2,
      -1);
}

mx::array l2_norm(const mx::array& x) {
  auto v = mx::astype(x, mx::float32);
  auto sum = mx::sum(mx::square(v), -1, true);
  return mx::astype(
      mx::multiply(v, mx::rsqrt(mx::add(sum, mx::array(1e-6f)))),
      x.dtype());
}

mx::array silu(const mx::array& x) {
  return mx::multiply(x, mx::sigmoid(x));
}

mx::array softplus(const mx::array& x) {
  return mx::logaddexp(x, mx::array(0.0f, x.dtype()));
}

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

mx::array rotate(const mx::array& x, const RopeTable& table) {
  int half = table.cos.shape(1);
  auto v = mx::astype(x, mx::float32);
  auto cos = mx::expand_dims(table.cos, 1);
  auto sin = mx::expand_dims(table.sin, 1);
  auto parts = mx::split(v, mx::Shape{half, 2 * half}, -1);
  const auto& a = parts[0];
  const auto& b = parts[1];
  auto out = mx::concatenate(
      {mx::subtract(mx::multiply(a, cos), mx::multiply(b, sin)),
       mx::add(mx::multiply(b, cos), mx::multiply(a, sin)),
       parts[2]},
      -1);
  return mx::astype(out, x.dtype());
}

} // namespace qwenmtp::model
