/** One logits row on the host, and what a sampler does with it. No MLX here. */
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace qwenmtp::sampling {

enum class Dtype { float32, bfloat16, float16 };

/** [size] values of dtype; the owner keeps the memory alive. */
struct RowView {
  const void* data;
  Dtype dtype;
  int32_t size;

  /** Value i, widened exactly. */
  float operator[](int32_t i) const;
};

/** MTPLX's SamplerConfig. Any value has a meaning: temperature <= 0 is greedy,
 *  top_p outside (0, 1) means no nucleus, top_k <= 0 means the whole row. */
struct Params {
  double temperature = 1.0;
  double top_p = 0.95;
  int64_t top_k = 20;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;

  bool greedy() const {
    return temperature <= 0;
  }
  bool nucleus() const {
    return 0 < top_p && top_p < 1;
  }
  bool penalised() const {
    return presence_penalty != 0 || frequency_penalty != 0;
  }
  Params without_penalties() const {
    return {temperature, top_p, top_k, 0.0, 0.0};
  }
};

using TokenCounts = std::unordered_map<int32_t, int32_t>;

/** What is subtracted from a raw row: the penalties of the completion's counts,
 *  then amounts per token that no clamp touches. */
struct Steering {
  const TokenCounts* counts = nullptr;
  std::span<const std::pair<int32_t, double>> overlay = {};
};

/** x rounded to dtype, nearest even, and widened again. */
float round_to(float x, Dtype dtype);

/** True when the steering changes a row under these parameters. */
bool steers(const Params& params, const Steering& steering);

/** The row after penalties, in the arithmetic of its own dtype. Returns the row
 *  itself when nothing applies, else a float32 view of scratch. */
RowView steered(
    RowView row,
    const Params& params,
    const Steering& steering,
    std::vector<float>& scratch);

/** The same in float64 for the dense path: widened, never rounded again. */
void steered64(
    RowView row,
    const Params& params,
    const Steering& steering,
    std::vector<double>& out);

} // namespace qwenmtp::sampling
