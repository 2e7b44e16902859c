/** Weight decoders and the tiles of product.h. */
#include "kernels/cpu/product.h"

#include <utility>

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

namespace {

// Codecs. A row is read in spans of columns that share what the codec keeps in
// registers; a span gives sixteen weights from column k, a multiple of 16.

template <typename T>
struct Dense {
  struct Row {
    const T* p;
    QWENMTP_INLINE int span_len(int in) const {
      return in;
    }
    QWENMTP_INLINE const Row& span(int) const {
      return *this;
    }
    QWENMTP_INLINE F at(int k) const {
      return load(p + k);
    }
    QWENMTP_INLINE F first(int k, int count) const {
      return load_first(p + k, count);
    }
  };
  Weights w;
  int64_t expert = 0;
  QWENMTP_INLINE Row row(int o) const {
    const char* base =
        static_cast<const char*>(w.data) + expert * w.stack_bytes;
    return {reinterpret_cast<const T*>(base + o * w.row_bytes)};
  }
};

using Bytes16 [[gnu::vector_size(16)]] = uint8_t;

/** For each lane of part p the two bytes that hold its code, low byte first, in
 *  the lower half of a word. Index 0x80 gives zero. */
template <int bits, int p>
struct ByteIndex {
  alignas(64) uint8_t at[4 * kNative];
  constexpr ByteIndex() : at{} {
    for (int j = 0; j < 4 * kNative; ++j) {
      int byte = (p * kNative + j / 4) * bits / 8 + j % 4;
      at[j] = j % 4 > 1 ? 0x80 : byte < 16 ? byte : 15;
    }
  }
};

QWENMTP_INLINE NativeU pick_bytes(Bytes16 v, const uint8_t* index) {
#if defined(__AVX512F__)
  __m512i all = _mm512_maskz_broadcast_i32x4(0xffff, (__m128i)v);
  return (NativeU)_mm512_shuffle_epi8(all, _mm512_load_si512(index));
#elif defined(__AVX2__)
  __m256i both = _mm256_broadcastsi128_si256((__m128i)v);
  return (NativeU)_mm256_shuffle_epi8(
      both,
      _mm256_load_si256((const __m256i*)index));
#else
  return (NativeU)vqtbl1q_u8((uint8x16_t)v, vld1q_u8(index));
#endif
}

/** kNative bytes as floats: eight-bit codes. */
QWENMTP_INLINE NativeF bytes_as_floats(const uint8_t* from) {
#if defined(__AVX512F__)
  auto words = (NativeI)_mm512_maskz_cvtepu8_epi32(
      0xffff,
      _mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  auto words =
      (NativeI)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  uint32_t four;
  __builtin_memcpy(&four, from, sizeof(four));
  auto bytes = vreinterpret_u8_u32(vdup_n_u32(four));
  auto words = (NativeI)vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
#endif
  return __builtin_convertvector(words, NativeF);
}

template <int bits, int p, int... i>
QWENMTP_INLINE NativeF codes_of(Bytes16 v, std::integer_sequence<int, i...>) {
  static constexpr ByteIndex<bits, p> kIndex;
  constexpr NativeU shift = {uint32_t{(p * kNative + i) * bits % 8}...};
  NativeU code = (pick_bytes(v, kIndex.at) >> shift) & ((1u << bits) - 1);
  return __builtin_convertvector((NativeI)code, NativeF);
}

/** `count` bytes as the low end of a word, by loads that stay inside them. */
template <int count>
QWENMTP_INLINE uint64_t load_bytes(const uint8_t* from) {
  if constexpr (count == 6) {
    return load_bytes<4>(from) | load_bytes<2>(from + 4) << 32;
  } else {
    uint64_t word = 0;
    __builtin_memcpy(&word, from, count);
    return word;
  }
}

/** Sixteen codes as floats from 2 * bits bytes. */
template <int bits, int... p>
QWENMTP_INLINE F codes(const uint8_t* from, std::integer_sequence<int, p...>) {
  if constexpr (bits == 8) {
    return {{bytes_as_floats(from + p * kNative)...}};
  }
  constexpr int low = 2 * bits < 8 ? 2 * bits : 8;
  using Words [[gnu::vector_size(16)]] = uint64_t;
  Words words = {load_bytes<low>(from), load_bytes<2 * bits - low>(from + low)};
  return {{codes_of<bits, p>(
      (Bytes16)words,
      std::make_integer_sequence<int, kNative>())...}};
}

template <int bits, typename S>
struct Affine {
  struct Span {
    const uint8_t* p;
    F scale;
    F bias;
    QWENMTP_INLINE F at(int k) const {
      F code = codes<bits>(
          p + k / 8 * bits,
          std::make_integer_sequence<int, kParts>());
      return fma(code, scale, bias);
    }
  };
  struct Row {
    const uint8_t* p;
    const S* scales;
    const S* biases;
    int shift;
    QWENMTP_INLINE int span_len(int) const {
      return 1 << shift;
    }
    QWENMTP_INLINE Span span(int k) const {
      return {
          p,
          splat(load1(scales + (k >> shift))),
          splat(load1(biases + (k >> shift)))};
    }
    QWENMTP_INLINE F first(int k, int) const {
      return span(k).at(k); // rows are whole groups; never reached
    }
  };
  Weights w;
  int64_t expert = 0;
  QWENMTP_INLINE Row row(int o) const {
    int64_t at = expert * w.scale_stack + o * w.scale_row;
    const uint8_t* base =
        static_cast<const uint8_t*>(w.data) + expert * w.stack_bytes;
    return {
        base + o * w.row_bytes,
        static_cast<const S*>(w.scales) + at,
        static_cast<const S*>(w.biases) + at,
        __builtin_ctz(w.group)};
  }
};

template <typename Body>
void with_affine(int bits, Body body) {
  switch (bits) {
    case 2:
      return body(std::integral_constant<int, 2>());
    case 3:
      return body(std::integral_constant<int, 3>());
    case 4:
      return body(std::integral_constant<int, 4>());
    case 5:
      return body(std::integral_constant<int, 5>());
    case 6:
      return body(std::integral_constant<int, 6>());
    default:
      return body(std::integral_constant<int, 8>());
  }
}

template <typename Body>
void with_codec(const Weights& w, int64_t expert, Body body) {
  if (w.bits == 0) {
    with_type(w.type, [&](auto* t) {
      using T = std::remove_cvref_t<decltype(*t)>;
      body(Dense<T>{w, expert});
    });
  } else {
    with_affine(w.bits, [&](auto bits) {
      if (w.type == Type::f32) {
        body(Affine<bits, float>{w, expert});
      } else {
        body(Affine<bits, Bf16>{w, expert});
      }
    });
  }
}

/** R rows times four outputs: out[r * ld + 0..3]. */
template <int R, typename Row>
QWENMTP_INLINE void tile(
    const float* const* x,
    const Row (&w)[4],
    int in,
    float* out,
    int64_t ld) {
  F acc[R][4];
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < 4; ++o) {
      acc[r][o] = splat(0.0f);
    }
  }
  auto step = [&](const F(&wk)[4], const F(&xk)[R]) {
    for (int r = 0; r < R; ++r) {
      for (int o = 0; o < 4; ++o) {
        acc[r][o] = fma(wk[o], xk[r], acc[r][o]);
      }
    }
  };
  const int whole = in / kLanes * kLanes;
  const int span_len = w[0].span_len(in);
  F xk[R];
  for (int k = 0; k < whole;) {
    const auto s0 = w[0].span(k), s1 = w[1].span(k);
    const auto s2 = w[2].span(k), s3 = w[3].span(k);
    const int end = k + span_len < whole ? k + span_len : whole;
    for (; k < end; k += kLanes) {
      const F wk[4] = {s0.at(k), s1.at(k), s2.at(k), s3.at(k)};
      for (int r = 0; r < R; ++r) {
        xk[r] = load(x[r] + k);
      }
      step(wk, xk);
    }
  }
  if (const int k = whole; k < in) {
    const int left = in - k;
    const F wk[4] = {
        w[0].first(k, left),
        w[1].first(k, left),
        w[2].first(k, left),
        w[3].first(k, left)};
    for (int r = 0; r < R; ++r) {
      xk[r] = load_first(x[r] + k, left);
    }
    step(wk, xk);
  }
  for (int r = 0; r < R; ++r) {
    F4 sums = sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    __builtin_memcpy(out + r * ld, &sums, sizeof(sums));
  }
}

/** Rows of the largest tile: what fits the registers. */
constexpr int kTileRows = kParts == 1 ? 4 : 1;

/** n rows times four outputs. */
template <typename Row>
void tiles(
    const float* const* x,
    int n,
    const Row (&w)[4],
    int in,
    float* out,
    int64_t ld) {
  for (int r = 0; r < n;) {
    switch (n - r < kTileRows ? n - r : kTileRows) {
      case 4:
        tile<4>(x + r, w, in, out + r * ld, ld);
        r += 4;
        break;
      case 3:
        tile<3>(x + r, w, in, out + r * ld, ld);
        r += 3;
        break;
      case 2:
        tile<2>(x + r, w, in, out + r * ld, ld);
        r += 2;
        break;
      default:
        tile<1>(x + r, w, in, out + r * ld, ld);
        r += 1;
    }
  }
}

template <typename Codec>
void products_of(
    const Codec& codec,
    const float* const* x,
    int n,
    int begin,
    int end,
    float* out,
    int64_t ld) {
  const int in = codec.w.in;
  if (n <= kFewRows) {
    for (int o = begin; o < end; o += 4) {
      auto at = [&](int i) { return codec.row(o + i < end ? o + i : end - 1); };
      const typename Codec::Row four[4] = {at(0), at(1), at(2), at(3)};
      tiles(x, n, four, in, out + (o - begin), ld);
    }
    return;
  }
  Scratch scratch;
  const int64_t panel_ld = round_up(in, kLanes);
  float* panel = scratch.floats((end - begin) * panel_ld);
  for (int o = begin; o < end; ++o) {
    auto row = codec.row(o);
    float* to = panel + (o - begin) * panel_ld;
    const int whole = in / kLanes * kLanes;
    for (int k = 0; k < whole;) {
      const auto span = row.span(k);
      const int stop = k + row.span_len(in);
      for (; k < (stop < whole ? stop : whole); k += kLanes) {
        store(to + k, span.at(k));
      }
    }
    if (whole < in) {
      store(to + whole, row.first(whole, in - whole));
    }
  }
  for (int r = 0; r < n; r += 4) {
    const int rows = n - r < 4 ? n - r : 4;
    for (int o = begin; o < end; o += 4) {
      auto at = [&](int i) {
        return Dense<float>::Row{
            panel + ((o + i < end ? o + i : end - 1) - begin) * panel_ld};
      };
      const Dense<float>::Row four[4] = {at(0), at(1), at(2), at(3)};
      tiles(x + r, rows, four, in, out + r * ld + (o - begin), ld);
    }
  }
}

} // namespace

template <typename T>
void products_of_rows(
    const float* const* x,
    int n,
    const T* const* rows,
    int count,
    int in,
    float* out,
    int64_t ld) {
  for (int o = 0; o < count; o += 4) {
    auto at = [&](int i) {
      return typename Dense<T>::Row{rows[o + i < count ? o + i : count - 1]};
    };
    const typename Dense<T>::Row four[4] = {at(0), at(1), at(2), at(3)};
    tiles(x, n, four, in, out + o, ld);
  }
}

template void products_of_rows(
    const float* const*,
    int,
    const float* const*,
    int,
    int,
    float*,
    int64_t);
template void products_of_rows(
    const float* const*,
    int,
    const Bf16* const*,
    int,
    int,
    float*,
    int64_t);

void products(
    const float* const* x,
    int n,
    const Weights& w,
    int64_t expert,
    int begin,
    int end,
    float* out,
    int64_t ld) {
  with_codec(w, expert, [&](const auto& codec) {
    products_of(codec, x, n, begin, end, out, ld);
  });
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
