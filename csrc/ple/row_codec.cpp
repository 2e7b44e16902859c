#include "ple/row_codec.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"

namespace qwenmtp::ple {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int kPiece = 32; // codes

float widen(uint16_t bf16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16);
}

// Round to nearest even; every NaN becomes the one that MLX writes.
uint16_t narrow(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16;
  return std::isnan(value) ? 0x7FC0 : static_cast<uint16_t>(rounded);
}

float e4m3(uint8_t byte) {
  const int exponent = (byte >> 3) & 15;
  const int mantissa = byte & 7;
  if (exponent == 15 && mantissa == 7) {
    return std::bit_cast<float>(0x7FC00000u);
  }
  const float magnitude =
      exponent == 0
          ? std::ldexp(static_cast<float>(mantissa), -9)
          : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}

uint16_t load16(const std::byte* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

float load_float(const std::byte* p) {
  float value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

float load_scale(const std::byte* scales, int group, int bytes) {
  const std::byte* p = scales + group * bytes;
  return bytes == 2 ? widen(load16(p)) : load_float(p);
}

template <RowType type>
auto finish_affine(float scale, float code, float bias) {
  if constexpr (type == RowType::kFloat32) {
    return scale * code + bias;
  } else if constexpr (type == RowType::kBfloat16Fused) {
    return narrow(scale * code + bias);
  } else {
    return narrow(widen(narrow(scale * code)) + bias);
  }
}

// Eight codes of `bits`, low bits first, to one byte each: halves move apart in
// three steps.
template <int bits>
uint64_t spread(uint64_t packed) {
  constexpr uint64_t kFour = (uint64_t{1} << (4 * bits)) - 1;
  constexpr uint64_t kTwo = ((uint64_t{1} << (2 * bits)) - 1) * 0x100000001;
  constexpr uint64_t kOne = ((uint64_t{1} << bits) - 1) * 0x1000100010001;
  uint64_t x = (packed & kFour) | (packed >> (4 * bits) & kFour) << 32;
  x = (x & kTwo) | (x >> (2 * bits) & kTwo) << 16;
  return (x & kOne) | (x >> bits & kOne) << 8;
}

// Pieces of fixed length keep the inner loop free of branches.
template <int bits, RowType type, typename T>
void decode_affine(const RowFormat& format, const std::byte* record, T* out) {
  const std::byte* scales = record + format.plane_bytes(0);
  const std::byte* biases = scales + format.plane_bytes(1);
  const int n_groups = format.dim / format.group_size;
  for (int g = 0; g < n_groups; ++g) {
    const float scale = load_scale(scales, g, format.scale_bytes);
    const float bias = load_scale(biases, g, format.scale_bytes);
    for (int i = 0; i < format.group_size; i += kPiece) {
      uint8_t codes[kPiece];
      for (int k = 0; k < kPiece; k += 8) {
        uint64_t packed = 0;
        std::memcpy(&packed, record, bits);
        packed = spread<bits>(packed);
        std::memcpy(codes + k, &packed, sizeof(packed));
        record += bits;
      }
      for (int k = 0; k < kPiece; ++k) {
        const auto code = static_cast<float>(static_cast<int>(codes[k]));
        out[k] = finish_affine<type>(scale, code, bias);
      }
      out += kPiece;
    }
  }
}

template <RowType type, typename T>
void decode_as(const RowFormat& format, const std::byte* record, T* out) {
  constexpr bool kWide = type == RowType::kFloat32;
  if (format.coding == Coding::kBf16) {
    for (int i = 0; i < format.dim; ++i) {
      const uint16_t bits = load16(record + 2 * i);
      if constexpr (kWide) {
        out[i] = widen(bits);
      } else {
        out[i] = bits;
      }
    }
    return;
  }
  if (format.coding == Coding::kF32) {
    for (int i = 0; i < format.dim; ++i) {
      const float value = load_float(record + sizeof(float) * i);
      if constexpr (kWide) {
        out[i] = value;
      } else {
        out[i] = narrow(value);
      }
    }
    return;
  }
  if (format.coding == Coding::kFp8) {
    static const auto kValues = [] {
      std::array<float, 256> values{};
      for (int i = 0; i < 256; ++i) {
        values[i] = e4m3(static_cast<uint8_t>(i));
      }
      return values;
    }();
    for (int i = 0; i < format.dim; ++i) {
      const float value =
          kValues[static_cast<uint8_t>(record[i])] * format.fp8_scale;
      if constexpr (kWide) {
        out[i] = value;
      } else {
        out[i] = narrow(value);
      }
    }
    return;
  }
  switch (format.bits) {
    case 2:
      return decode_affine<2, type>(format, record, out);
    case 3:
      return decode_affine<3, type>(format, record, out);
    case 4:
      return decode_affine<4, type>(format, record, out);
    case 5:
      return decode_affine<5, type>(format, record, out);
    case 6:
      return decode_affine<6, type>(format, record, out);
    default:
      return decode_affine<8, type>(format, record, out);
  }
}

} // namespace

size_t RowFormat::plane_bytes(int plane) const {
  const auto n = static_cast<size_t>(dim);
  switch (coding) {
    case Coding::kBf16:
      return 2 * n;
    case Coding::kF32:
      return 4 * n;
    case Coding::kFp8:
      return n;
    case Coding::kAffine:
      break;
  }
  return plane == 0 ? n * static_cast<size_t>(bits) / 8
                    : n / static_cast<size_t>(group_size) *
                          static_cast<size_t>(scale_bytes);
}

size_t RowFormat::record_bytes() const {
  size_t bytes = 0;
  for (int plane = 0; plane < n_planes(); ++plane) {
    bytes += plane_bytes(plane);
  }
  return bytes;
}

void check(const RowFormat& format) {
  const auto fail = [](const std::string& what) {
    throw ModelFormatError("[ple.check] " + what);
  };
  if (format.dim < 1 || format.dim > (1 << 20)) {
    fail("row dim " + std::to_string(format.dim) + ", expected 1..2^20");
  }
  if (format.coding == Coding::kFp8 && !std::isfinite(format.fp8_scale)) {
    fail("fp8 scale is not finite");
  }
  if (format.coding != Coding::kAffine) {
    return;
  }
  const int bits = format.bits;
  if (bits < 2 || bits > 8 || bits == 7) {
    fail(
        "table of " + std::to_string(bits) +
        " bits, expected 2, 3, 4, 5, 6 or 8");
  }
  if (format.group_size < kPiece || format.group_size % kPiece != 0 ||
      format.dim % format.group_size != 0) {
    fail(
        "group size " + std::to_string(format.group_size) +
        ", expected a multiple of 32 that divides dim " +
        std::to_string(format.dim));
  }
}

void decode_row(
    const RowFormat& format,
    const std::byte* record,
    RowType type,
    void* out) {
  switch (type) {
    case RowType::kFloat32:
      return decode_as<RowType::kFloat32>(
          format,
          record,
          static_cast<float*>(out));
    case RowType::kBfloat16:
      return decode_as<RowType::kBfloat16>(
          format,
          record,
          static_cast<uint16_t*>(out));
    case RowType::kBfloat16Fused:
      return decode_as<RowType::kBfloat16Fused>(
          format,
          record,
          static_cast<uint16_t*>(out));
  }
}

} // namespace qwenmtp::ple
