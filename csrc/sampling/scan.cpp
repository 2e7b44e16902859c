#include "sampling/scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/exp_sum.h"

#if defined(__x86_64__)
#define QWENMTP_X86 1
#endif

namespace qwenmtp::sampling {

namespace {

constexpr int kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

#define INLINE [[gnu::always_inline]] inline

template <int W>
struct Vec {
  typedef float F __attribute__((vector_size(W * 4)));
  typedef int32_t I __attribute__((vector_size(W * 4)));
  typedef uint32_t U __attribute__((vector_size(W * 4)));
  typedef uint16_t H __attribute__((vector_size(W * 2)));
};

template <int W>
INLINE typename Vec<W>::F load(const float* p) {
  typename Vec<W>::F v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <int W>
INLINE typename Vec<W>::U load_bits(const void* p) {
  typename Vec<W>::H h;
  std::memcpy(&h, p, sizeof h);
  return __builtin_convertvector(h, typename Vec<W>::U);
}

template <int W>
INLINE typename Vec<W>::F load(const Bfloat16* p) {
  return (typename Vec<W>::F)(load_bits<W>(p) << 16);
}

template <int W>
INLINE typename Vec<W>::F load(const Float16* p) {
  using F = typename Vec<W>::F;
  using U = typename Vec<W>::U;
  const U h = load_bits<W>(p);
  const U magnitude = (h & 0x7FFFu) << 13;
  const U finite = (U)((F)magnitude * 0x1p112f);
  const U special = magnitude | 0x7F800000u;
  const U big = (U)(magnitude >= (0x7C00u << 13));
  return (F)(((h & 0x8000u) << 16) | (big & special) | (~big & finite));
}

struct Job {
  const void* data;
  int32_t size;
  float scale;
  bool want_sum;
  float* block_max;
  float* block_sum;
};

/** Scales one block into out; returns its maximum and gathers NaN lanes. */
template <int W, typename T>
INLINE float scale_block(
    const T* x,
    float scale,
    float* out,
    typename Vec<W>::I* nan_lanes) {
  using F = typename Vec<W>::F;
  constexpr int kParts = kLanes / W;
  F best[kParts];
  for (int j = 0; j < kParts; j++) {
    best[j] = F{} - kInfinity;
  }
  for (int32_t i = 0; i < kScanBlock; i += kLanes) {
    for (int j = 0; j < kParts; j++) {
      const F s = load<W>(x + i + j * W) * scale;
      std::memcpy(out + i + j * W, &s, sizeof s);
      *nan_lanes |= s != s;
      best[j] = s > best[j] ? s : best[j];
    }
  }
  float top = -kInfinity;
  for (int j = 0; j < kParts; j++) {
    for (int k = 0; k < W; k++) {
      top = std::max(top, best[j][k]);
    }
  }
  return top;
}

template <int W, typename T>
INLINE Scan scan(const Job& job) {
  using F = typename Vec<W>::F;
  using I = typename Vec<W>::I;
  alignas(64) float scaled[kScanBlock];
  alignas(64) T tail[kScanBlock];
  const T* x = static_cast<const T*>(job.data);
  Scan result{-kInfinity, false, 0.0f};
  I nan_lanes = {};
  for (int32_t begin = 0; begin < job.size; begin += kScanBlock) {
    const T* block = x + begin;
    const int32_t n = std::min(kScanBlock, job.size - begin);
    if (n < kScanBlock) {
      // A repeated first value changes no maximum; the sum skips it below.
      std::memcpy(tail, block, sizeof(T) * n);
      std::fill(tail + n, tail + kScanBlock, tail[0]);
      block = tail;
    }
    const float top = scale_block<W>(block, job.scale, scaled, &nan_lanes);
    job.block_max[begin / kScanBlock] = top;
    result.max = std::max(result.max, top);
    if (job.want_sum) {
      std::fill(scaled + n, scaled + kScanBlock, -kInfinity);
      job.block_sum[begin / kScanBlock] = exp_sum_of_block<F, I>(scaled, top);
    }
  }
  if (job.want_sum) {
    result.exp_sum = exp_sum_of_row<F, I>(
        job.block_max,
        job.block_sum,
        (job.size + kScanBlock - 1) / kScanBlock,
        result.max);
  }
  for (int k = 0; k < W; k++) {
    result.has_nan |= nan_lanes[k] != 0;
  }
  return result;
}

template <int W>
INLINE Scan scan_any(Dtype dtype, const Job& job) {
  switch (dtype) {
    case Dtype::float32:
      return scan<W, float>(job);
    case Dtype::bfloat16:
      return scan<W, Bfloat16>(job);
    case Dtype::float16:
      return scan<W, Float16>(job);
  }
  return {};
}

Scan scan_base(Dtype dtype, const Job& job) {
  return scan_any<4>(dtype, job);
}

#ifdef QWENMTP_X86
[[gnu::target("avx2")]] Scan scan_avx2(Dtype dtype, const Job& job) {
  return scan_any<8>(dtype, job);
}

[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] Scan scan_avx512(
    Dtype dtype,
    const Job& job) {
  return scan_any<16>(dtype, job);
}
#endif

using ScanFunction = Scan (*)(Dtype, const Job&);

ScanFunction choose_scan() {
#ifdef QWENMTP_X86
  if (__builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return scan_avx512;
  }
  if (__builtin_cpu_supports("avx2")) {
    return scan_avx2;
  }
#endif
  return scan_base;
}

} // namespace

Scan scan_row(
    RowView row,
    float scale,
    bool want_sum,
    std::vector<float>& block_max) {
  static const ScanFunction scan = choose_scan();
  const size_t n_blocks = (row.size + kScanBlock - 1) / kScanBlock;
  block_max.resize(n_blocks);
  std::vector<float> block_sum(want_sum ? n_blocks : 0);
  return scan(
      row.dtype,
      {row.data,
       row.size,
       scale,
       want_sum,
       block_max.data(),
       block_sum.data()});
}

void scaled_values(
    RowView row,
    float scale,
    int32_t begin,
    int32_t n,
    float* out) {
  for (int32_t i = 0; i < n; i++) {
    out[i] = row[begin + i] * scale;
  }
}

} // namespace qwenmtp::sampling
