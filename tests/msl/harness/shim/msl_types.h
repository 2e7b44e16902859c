// Metal's scalar and vector types on a CPU: half, bfloat, vec<T, N>.
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#define MSL_AI inline __attribute__((always_inline))

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef _Float16 half;

namespace metal {

// Converts as in MSL: to float implicitly, from float explicitly.
struct bfloat {
  uint16_t bits;

  bfloat() = default;
  template <
      class T,
      class =
          std::enable_if_t<std::is_arithmetic_v<T> || std::is_same_v<T, half>>>
  constexpr explicit bfloat(T f) : bits(nearest(float(f))) {
  }
  constexpr operator float() const {
    return std::bit_cast<float>(uint32_t(bits) << 16);
  }

  static constexpr uint16_t nearest(float f) {
    uint32_t u = std::bit_cast<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      return uint16_t((u >> 16) | 0x40);
    }
    return uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  }
};

template <class T, int N>
struct vec;

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  MSL_AI constexpr vec(T a, T b) : x(a), y(b) {
  }
  MSL_AI constexpr T& operator[](int i) {
    return i == 0 ? x : y;
  }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  MSL_AI constexpr vec(T a, T b, T c) : x(a), y(b), z(c) {
  }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  MSL_AI constexpr vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {
  }
};

template <class To, class From>
MSL_AI To as_type(From f) {
  return std::bit_cast<To>(f);
}

} // namespace metal

typedef metal::vec<float, 2> float2;
typedef metal::vec<float, 4> float4;
typedef metal::vec<uint, 2> uint2;
typedef metal::vec<uint, 3> uint3;
typedef metal::vec<uint, 4> uint4;
