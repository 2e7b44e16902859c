/** The one pass over a logits row that every read needs: maxima per block and
 *  the sum of exponentials (base/exp_sum.h). Same bits on every machine. */
#pragma once

#include <cstdint>
#include <vector>

#include "base/exp_sum.h"
#include "sampling/row.h"

namespace qwenmtp::sampling {

constexpr int32_t kScanBlock = kExpBlock;

struct Scan {
  /** Of scaled values s = x * scale in float32; NaN never wins. */
  float max;
  bool has_nan;
  /** sum(exp(s - max)), relative error below 1e-6; 0 if not asked for. */
  float exp_sum;
};

/** block_max gets the maximum of every kScanBlock scaled values. */
Scan scan_row(
    RowView row,
    float scale,
    bool want_sum,
    std::vector<float>& block_max);

/** Scaled values [begin, begin + n) with the very bits that the scan saw. */
void scaled_values(
    RowView row,
    float scale,
    int32_t begin,
    int32_t n,
    float* out);

} // namespace qwenmtp::sampling
