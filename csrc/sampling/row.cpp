#include "sampling/row.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace qwenmtp::sampling {

namespace {

constexpr double kPenaltyBound = 2.0;

float half_to_float(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16;
  const uint32_t magnitude = (h & 0x7FFFu) << 13;
  if (magnitude >= (0x7C00u << 13)) {
    return std::bit_cast<float>(sign | 0x7F800000u | magnitude);
  }
  // The exponent bias differs by 112; the product also normalises subnormals.
  const float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

float round_to_half(float x) {
  if (x != x) {
    return x;
  }
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits & 0x80000000u;
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  float rounded = std::numeric_limits<float>::infinity();
  if (magnitude < 0x1p-14f) {
    // Adding 0.5 leaves a unit of 2^-24, the spacing of the subnormals.
    rounded = (magnitude + 0.5f) - 0.5f;
  } else if (magnitude < 65520.0f) {
    uint32_t m = std::bit_cast<uint32_t>(magnitude);
    m += 0xFFFu + ((m >> 13) & 1u);
    rounded = std::bit_cast<float>(m & ~0x1FFFu);
  }
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(rounded));
}

float round_to_bfloat(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) {
    return std::bit_cast<float>((bits | 0x400000u) & 0xFFFF0000u);
  }
  bits += 0x7FFFu + ((bits >> 16) & 1u);
  return std::bit_cast<float>(bits & 0xFFFF0000u);
}

double clamp_penalty(double value) {
  return std::clamp(value, -kPenaltyBound, kPenaltyBound);
}

/** Calls apply(token, amount) for every amount to subtract, in order. */
template <typename Apply>
void for_each_amount(
    const Params& params,
    const Steering& steering,
    Apply apply) {
  const double presence = clamp_penalty(params.presence_penalty);
  const double frequency = clamp_penalty(params.frequency_penalty);
  if (steering.counts && (presence != 0 || frequency != 0)) {
    for (const auto& [token, count] : *steering.counts) {
      apply(token, frequency * count + presence * (count > 0 ? 1.0 : 0.0));
    }
  }
  for (const auto& [token, amount] : steering.overlay) {
    apply(token, amount);
  }
}

} // namespace

float RowView::operator[](int32_t i) const {
  if (dtype == Dtype::float32) {
    return static_cast<const float*>(data)[i];
  }
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return dtype == Dtype::bfloat16
             ? std::bit_cast<float>(static_cast<uint32_t>(bits) << 16)
             : half_to_float(bits);
}

float round_to(float x, Dtype dtype) {
  switch (dtype) {
    case Dtype::float32:
      return x;
    case Dtype::bfloat16:
      return round_to_bfloat(x);
    case Dtype::float16:
      return round_to_half(x);
  }
  return x;
}

bool steers(const Params& params, const Steering& steering) {
  return !steering.overlay.empty() ||
         (params.penalised() && steering.counts && !steering.counts->empty());
}

RowView steered(
    RowView row,
    const Params& params,
    const Steering& steering,
    std::vector<float>& scratch) {
  if (!steers(params, steering)) {
    return row;
  }
  scratch.resize(row.size);
  if (row.dtype == Dtype::float32) {
    std::memcpy(scratch.data(), row.data, sizeof(float) * row.size);
  } else {
    for (int32_t i = 0; i < row.size; i++) {
      scratch[i] = row[i];
    }
  }
  for_each_amount(params, steering, [&](int32_t token, double amount) {
    const float step = round_to(-static_cast<float>(amount), row.dtype);
    scratch[token] = round_to(scratch[token] + step, row.dtype);
  });
  return {scratch.data(), Dtype::float32, row.size};
}

void steered64(
    RowView row,
    const Params& params,
    const Steering& steering,
    std::vector<double>& out) {
  out.resize(row.size);
  for (int32_t i = 0; i < row.size; i++) {
    out[i] = row[i];
  }
  for_each_amount(params, steering, [&](int32_t token, double amount) {
    out[token] -= amount;
  });
}

} // namespace qwenmtp::sampling
