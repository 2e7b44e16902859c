/** Sixteen float lanes on every instruction set, and what the bodies build from
 *  them. Included only in this folder, whose files are each compiled once per
 *  instruction set into its own namespace QWENMTP_ISA.
 *
 *  The lanes are logical: AVX-512 holds them in one register, AVX2 in two, NEON
 *  in four. Every operation rounds once and every sum over the lanes goes
 *  through one tree, so a result does not depend on the register width. */
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#else
#error "the CPU bodies need AVX2 with FMA, AVX-512 or NEON"
#endif

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

#if defined(__AVX512F__)
inline constexpr int kNative = 16;
#elif defined(__AVX2__)
inline constexpr int kNative = 8;
#else
inline constexpr int kNative = 4;
#endif
inline constexpr int kLanes = 16;
inline constexpr int kParts = kLanes / kNative;

using NativeF [[gnu::vector_size(4 * kNative)]] = float;
using NativeI [[gnu::vector_size(4 * kNative)]] = int32_t;
using NativeU [[gnu::vector_size(4 * kNative)]] = uint32_t;
using NativeH [[gnu::vector_size(2 * kNative)]] = uint16_t;
using F4 [[gnu::vector_size(16)]] = float;

#define QWENMTP_INLINE [[gnu::always_inline]] inline

/** Storage types; the lanes are always float. */
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

struct F {
  NativeF part[kParts];
};

QWENMTP_INLINE F splat(float v) {
  F r;
  for (int i = 0; i < kParts; ++i) {
    r.part[i] = NativeF{} + v;
  }
  return r;
}

QWENMTP_INLINE F operator+(F a, F b) {
  for (int i = 0; i < kParts; ++i) {
    a.part[i] += b.part[i];
  }
  return a;
}

QWENMTP_INLINE F operator-(F a, F b) {
  for (int i = 0; i < kParts; ++i) {
    a.part[i] -= b.part[i];
  }
  return a;
}

QWENMTP_INLINE F operator*(F a, F b) {
  for (int i = 0; i < kParts; ++i) {
    a.part[i] *= b.part[i];
  }
  return a;
}

QWENMTP_INLINE F operator/(F a, F b) {
  for (int i = 0; i < kParts; ++i) {
    a.part[i] /= b.part[i];
  }
  return a;
}

/** b where a < b, else a: a NaN in a stays. */
QWENMTP_INLINE F at_least(F a, F b) {
  for (int i = 0; i < kParts; ++i) {
    a.part[i] = a.part[i] < b.part[i] ? b.part[i] : a.part[i];
  }
  return a;
}

QWENMTP_INLINE F at_most(F a, F b) {
  for (int i = 0; i < kParts; ++i) {
    a.part[i] = a.part[i] > b.part[i] ? b.part[i] : a.part[i];
  }
  return a;
}

/** a * b + c, rounded once. */
QWENMTP_INLINE F fma(F a, F b, F c) {
  for (int i = 0; i < kParts; ++i) {
#if defined(__AVX512F__)
    c.part[i] = (NativeF)_mm512_fmadd_ps(
        (__m512)a.part[i],
        (__m512)b.part[i],
        (__m512)c.part[i]);
#elif defined(__AVX2__)
    c.part[i] = (NativeF)_mm256_fmadd_ps(
        (__m256)a.part[i],
        (__m256)b.part[i],
        (__m256)c.part[i]);
#else
    c.part[i] = (NativeF)vfmaq_f32(
        (float32x4_t)c.part[i],
        (float32x4_t)a.part[i],
        (float32x4_t)b.part[i]);
#endif
  }
  return c;
}

QWENMTP_INLINE float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

// Loads and stores: 16 consecutive values of a storage type, any alignment.

QWENMTP_INLINE F load(const float* p) {
  F r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}

QWENMTP_INLINE F load(const Bf16* p) {
  F r;
  for (int i = 0; i < kParts; ++i) {
    NativeH h;
    __builtin_memcpy(&h, p + i * kNative, sizeof(h));
    r.part[i] = (NativeF)(__builtin_convertvector(h, NativeU) << 16);
  }
  return r;
}

QWENMTP_INLINE F load(const F16* p) {
  F r;
  for (int i = 0; i < kParts; ++i) {
#if defined(__AVX512F__)
    // Unmasked, the intrinsic of GCC 12 warns about its own undefined operand.
    r.part[i] = (NativeF)_mm512_maskz_cvtph_ps(
        0xffff,
        _mm256_loadu_si256((const __m256i*)(p + i * kNative)));
#elif defined(__AVX2__)
    r.part[i] = (NativeF)_mm256_cvtph_ps(
        _mm_loadu_si128((const __m128i*)(p + i * kNative)));
#else
    r.part[i] =
        (NativeF)vcvt_f32_f16(vld1_f16((const __fp16*)(p + i * kNative)));
#endif
  }
  return r;
}

QWENMTP_INLINE void store(float* p, F v) {
  __builtin_memcpy(p, &v, sizeof(v));
}

/** Bits of v rounded to bfloat16, nearest even, in the upper half; a NaN stays
 * one. */
QWENMTP_INLINE NativeU bf16_bits(NativeF v) {
  NativeU u = (NativeU)v;
  NativeU rounded = u + 0x7fffu + ((u >> 16) & 1u);
  return v == v ? rounded : (u | 0x400000u);
}

QWENMTP_INLINE void store(Bf16* p, F v) {
  for (int i = 0; i < kParts; ++i) {
    NativeH h = __builtin_convertvector(bf16_bits(v.part[i]) >> 16, NativeH);
    __builtin_memcpy(p + i * kNative, &h, sizeof(h));
  }
}

/** v as it would come back from storage as T. */
template <typename T>
QWENMTP_INLINE F rounded(F v) {
  if constexpr (sizeof(T) == 2) {
    for (int i = 0; i < kParts; ++i) {
      v.part[i] = (NativeF)(bf16_bits(v.part[i]) & 0xffff0000u);
    }
  }
  return v;
}

template <typename T>
QWENMTP_INLINE float rounded(float v) {
  if constexpr (sizeof(T) == 2) {
    uint32_t u = __builtin_bit_cast(uint32_t, v);
    u = v == v ? u + 0x7fffu + ((u >> 16) & 1u) : (u | 0x400000u);
    return __builtin_bit_cast(float, u & 0xffff0000u);
  }
  return v;
}

QWENMTP_INLINE float load1(const float* p) {
  return *p;
}

QWENMTP_INLINE float load1(const Bf16* p) {
  return __builtin_bit_cast(float, uint32_t{p->bits} << 16);
}

QWENMTP_INLINE float load1(const F16* p) {
#if defined(__AVX2__)
  return _cvtsh_ss(p->bits);
#else
  return static_cast<float>(__builtin_bit_cast(__fp16, p->bits));
#endif
}

QWENMTP_INLINE void store1(float* p, float v) {
  *p = v;
}

QWENMTP_INLINE void store1(Bf16* p, float v) {
  p->bits = static_cast<uint16_t>(
      __builtin_bit_cast(uint32_t, rounded<Bf16>(v)) >> 16);
}

/** The first n < 16 values, zeros behind them. */
template <typename T>
QWENMTP_INLINE F load_first(const T* p, int n) {
  T lanes[kLanes] = {};
  __builtin_memcpy(lanes, p, n * sizeof(T));
  return load(lanes);
}

template <typename T>
QWENMTP_INLINE void store_first(T* p, F v, int n) {
  T lanes[kLanes];
  store(lanes, v);
  __builtin_memcpy(p, lanes, n * sizeof(T));
}

/** body(i, count) over n values in steps of 16; the last step may
 *  be short. The body sees whole lanes either way. */
template <typename Body>
QWENMTP_INLINE void for_lanes(int n, Body body) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    body(i, kLanes);
  }
  if (i < n) {
    body(i, n - i);
  }
}

template <typename T>
QWENMTP_INLINE F load_n(const T* p, int count) {
  return count == kLanes ? load(p) : load_first(p, count);
}

template <typename T>
QWENMTP_INLINE void store_n(T* p, F v, int count) {
  count == kLanes ? store(p, v) : store_first(p, v, count);
}

// Sums over the lanes: l with l + 8, then l + 4, l + 2, l + 1.

QWENMTP_INLINE F4 fold4(F v) {
#if defined(__AVX512F__)
  using F8 [[gnu::vector_size(32)]] = float;
  F8 a = __builtin_shufflevector(v.part[0], v.part[0], 0, 1, 2, 3, 4, 5, 6, 7);
  F8 b = __builtin_shufflevector(
      v.part[0],
      v.part[0],
      8,
      9,
      10,
      11,
      12,
      13,
      14,
      15);
  F8 s = a + b;
  return __builtin_shufflevector(s, s, 0, 1, 2, 3) +
         __builtin_shufflevector(s, s, 4, 5, 6, 7);
#elif defined(__AVX2__)
  NativeF s = v.part[0] + v.part[1];
  return __builtin_shufflevector(s, s, 0, 1, 2, 3) +
         __builtin_shufflevector(s, s, 4, 5, 6, 7);
#else
  return (v.part[0] + v.part[2]) + (v.part[1] + v.part[3]);
#endif
}

QWENMTP_INLINE float sum(F v) {
  F4 s = fold4(v);
  return (s[0] + s[2]) + (s[1] + s[3]);
}

/** Four sums at once, each through the tree of sum(). */
QWENMTP_INLINE F4 sum4(F a, F b, F c, F d) {
  F4 fa = fold4(a), fb = fold4(b), fc = fold4(c), fd = fold4(d);
  F4 ab = __builtin_shufflevector(fa, fb, 0, 1, 4, 5) +
          __builtin_shufflevector(fa, fb, 2, 3, 6, 7);
  F4 cd = __builtin_shufflevector(fc, fd, 0, 1, 4, 5) +
          __builtin_shufflevector(fc, fd, 2, 3, 6, 7);
  return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) +
         __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}

QWENMTP_INLINE float max(F v) {
  float lanes[kLanes];
  store(lanes, v);
  float m = lanes[0];
  for (int i = 1; i < kLanes; ++i) {
    m = lanes[i] > m ? lanes[i] : m;
  }
  return m;
}

/** e^x within 1 ulp on [-87.3, 88.3]; outside it the value of the nearer end.
 */
QWENMTP_INLINE F exp(F x) {
  x = at_most(at_least(x, splat(-87.3f)), splat(88.3f));
  const F magic =
      splat(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
  F n = fma(x, splat(1.44269504f), magic) - magic;
  F r = fma(n, splat(-0.693145752f), x);
  r = fma(n, splat(-1.42860677e-6f), r);
  F p = splat(1.98756907e-4f);
  p = fma(p, r, splat(1.39819994e-3f));
  p = fma(p, r, splat(8.33345205e-3f));
  p = fma(p, r, splat(4.16657962e-2f));
  p = fma(p, r, splat(1.66666657e-1f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r * r, r) + splat(1.0f);
  for (int i = 0; i < kParts; ++i) {
    NativeI e = __builtin_convertvector(n.part[i], NativeI) << 23;
    p.part[i] = (NativeF)((NativeI)p.part[i] + e);
  }
  return p;
}

QWENMTP_INLINE F sigmoid(F x) {
  return splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - x));
}

QWENMTP_INLINE float exp(float x) {
  return exp(splat(x)).part[0][0];
}

QWENMTP_INLINE float sigmoid(float x) {
  return sigmoid(splat(x)).part[0][0];
}

/** x * sigmoid(x) with the sigmoid held in T, as MLX computes it. */
template <typename T>
QWENMTP_INLINE F silu(F x) {
  return rounded<T>(x * rounded<T>(sigmoid(x)));
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
