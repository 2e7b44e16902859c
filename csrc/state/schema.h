/** What tensors a conversation's state has, as a pure function of the model's
 *  geometry, the token counts, the mode and the boundary positions. Knows no
 *  file and no array; sizes are counted here and nowhere else. */
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace qwenmtp::state {

/** What a trunk layer keeps. ple is a gdn layer with the n-gram parts. */
enum class LayerKind : uint8_t { gdn, ple, qsa };

// The values of these enums are those of the file format.
enum class Dtype : uint8_t { i64 = 8, f16 = 9, bf16 = 10, f32 = 11 };
enum class Group : uint8_t { trunk = 1, mtp = 2, final = 3, boundary = 4 };
enum class Role : uint8_t {
  gdn_conv = 1,
  gdn_ssm = 2,
  ple_conv = 3,
  ple_ids = 4,
  keys = 5,
  values = 6,
  raw = 7,
  pooled = 8,
  logits = 9,
  hidden = 10
};
enum class Mode : uint32_t { ar = 0, mtp = 1 };

inline constexpr uint16_t kNoBoundary = 0xFFFF;
inline constexpr uint32_t kMaxTensors = 8192;
inline constexpr uint32_t kMaxBoundaries = 32;

/** Sizes of one model's state; dtype is that of everything but the delta-rule
 *  matrix (f32) and the n-gram ids (i64). */
struct Geometry {
  std::vector<LayerKind> layers;
  Dtype dtype = Dtype::bf16;
  uint32_t vocab = 0;
  uint32_t wide = 0;      // residual streams, C * H
  uint32_t conv_rows = 3; // GDN short convolution, kernel - 1
  uint32_t conv_dim = 0;  // 2 * Hk * Dk + Hv * Dv
  uint32_t hv = 0;        // GDN value heads
  uint32_t dv = 0;
  uint32_t dk = 0;
  uint32_t ple_rows = 9;    // PLE short convolution, (kernel - 1) * dilation
  uint32_t ple_context = 2; // tokens, n-gram size - 1
  uint32_t hkv = 0;         // QSA key-value heads
  uint32_t head_dim = 0;
  uint32_t index_dim = 0;
  uint32_t pool = 4; // tokens a pooled indexer row

  bool operator==(const Geometry&) const = default;
};

/** The lengths of one state. */
struct StateShape {
  uint64_t n_tokens = 0;    // N
  uint64_t history_len = 0; // H, rows of the MTP history
  Mode mode = Mode::ar;
  std::vector<uint64_t> boundaries; // ascending, each in 1..N

  bool operator==(const StateShape&) const = default;
};

struct TensorSpec {
  Group group;
  Role role;
  uint16_t layer;
  uint16_t boundary; // index of the boundary record, or kNoBoundary
  Dtype dtype;
  uint8_t rank;
  std::array<uint32_t, 4> dims; // unused ones are 1
  uint64_t rows;                // token rows, 0 for what does not grow

  uint64_t n_bytes() const;
  bool operator==(const TensorSpec&) const = default;
};

/** The tensors in file order: trunk gdn and ple layers, trunk qsa layers, MTP,
 *  logits, hidden, then each boundary record. Lengths must fit uint32. */
std::vector<TensorSpec> schema(const Geometry& g, const StateShape& shape);

/** Bytes of all tensors of schema(g, shape), without padding. */
uint64_t payload_bytes(const Geometry& g, const StateShape& shape);

/** The geometry whose schema could be specs, for checks without a model; the
 *  caller compares schema(result, shape) with specs. Layers and widths that
 *  specs does not show stay at their defaults. */
Geometry infer_geometry(
    std::span<const TensorSpec> specs,
    const StateShape& shape);

} // namespace qwenmtp::state
