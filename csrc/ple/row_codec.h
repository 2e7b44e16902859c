/** What one row of the n-gram table looks like in bytes, and its values. A
 *  record is the row's planes one after the other: weight, or weight, scales,
 *  biases. Knows no files. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace qwenmtp::ple {

/** Type of decoded values. Affine rows are scale * code + bias:
 *  kFloat32   float product, float sum (mx.dequantize with float scales)
 *  kBfloat16  product and sum each rounded to bf16 (mx.dequantize with bf16
 *             scales, CPU back end)
 *  kBfloat16Fused  float product and sum, rounded once (one fused bf16
 *             multiply-add, as a GPU does it); same type of result. */
enum class RowType { kFloat32, kBfloat16, kBfloat16Fused };

enum class Coding {
  kBf16,   // dim bf16 values
  kF32,    // dim float values
  kAffine, // dim codes of `bits`, low bits first; scale, bias per group
  kFp8,    // dim E4M3 values times one scale for the whole table
};

struct RowFormat {
  int dim = 0;
  Coding coding = Coding::kBf16;
  int bits = 0;          // kAffine: 2, 3, 4, 5, 6, 8
  int group_size = 0;    // kAffine: a multiple of 32 that divides dim
  float fp8_scale = 1.0; // kFp8
  int scale_bytes = 2;   // kAffine: 2 is bf16, as in every table; 4 is float

  bool operator==(const RowFormat&) const = default;

  /** Arrays per row: 3 when affine, else 1. */
  int n_planes() const {
    return coding == Coding::kAffine ? 3 : 1;
  }

  /** Bytes of one row in plane 0 (weight), 1 (scales) or 2 (biases). */
  size_t plane_bytes(int plane) const;

  /** Bytes of one row in all planes. */
  size_t record_bytes() const;
};

/** Throws ModelFormatError for a geometry that no table can have. */
void check(const RowFormat& format);

inline size_t value_bytes(RowType type) {
  return type == RowType::kFloat32 ? 4 : 2;
}

/** Values of one record [dim] in `type`, written to `out` (any alignment of the
 *  record, `out` aligned for its type). */
void decode_row(
    const RowFormat& format,
    const std::byte* record,
    RowType type,
    void* out);

} // namespace qwenmtp::ple
