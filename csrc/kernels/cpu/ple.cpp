/** Per-layer n-gram embedding after its projections: gate, norm, dilated
 * convolution. */
#include "kernels/cpu/families.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/product.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

namespace {

struct Norms {
  const float* key;
  const float* query;
  const float* conv;
};

/** sign(s) * sqrt(max(|s|, 1e-6)) in T. */
template <typename T>
float signed_root(float s) {
  const float least = rounded<T>(1e-6f);
  const float size = __builtin_fabsf(s);
  const float root = rounded<T>(__builtin_sqrtf(size < least ? least : size));
  return s > 0 ? root : s < 0 ? -root : s == 0 ? 0.0f : s;
}

/** G and its norm for row r; work holds one hidden vector twice. */
template <typename T>
void gate_row(
    const PleCall& c,
    int r,
    const Norms& norms,
    float* work,
    float* gated) {
  const T* x = static_cast<const T*>(c.x.data) + r * c.x.stride;
  const T* key = static_cast<const T*>(c.key.data) + r * c.key.stride;
  const T* value = static_cast<const T*>(c.value.data) + r * c.value.stride;
  T* normed = static_cast<T*>(c.normed.data) + r * c.normed.stride;
  float* k = work;
  float* q = work + round_up(c.hidden, kLanes);
  const float share = 1.0f / __builtin_sqrtf(static_cast<float>(c.hidden));
  for (int s = 0; s < c.streams; ++s) {
    const int at = s * c.hidden;
    widen(key + at, k, c.hidden);
    widen(x + at, q, c.hidden);
    rms_norm<T>(k, norms.key + at, k, c.hidden, c.eps);
    rms_norm<T>(q, norms.query + at, q, c.hidden, c.eps);
    F dot = splat(0.0f);
    for_lanes(c.hidden, [&](int i, int count) {
      dot = dot + rounded<T>(load_n(k + i, count) * load_n(q + i, count));
    });
    const float root = signed_root<T>(rounded<T>(sum(dot) * share));
    const F gate = splat(rounded<T>(sigmoid(root)));
    for_lanes(c.hidden, [&](int i, int count) {
      store_n(
          gated + at + i,
          rounded<T>(gate * load_n(value + i, count)),
          count);
    });
    rms_norm<T>(gated + at, norms.conv + at, k, c.hidden, c.eps);
    narrow(k, normed + at, c.hidden);
  }
}

/** Row t of the convolution's input: of the state while t is negative. */
template <typename T>
const T* history_row(const PleCall& c, int t) {
  const int tail = (c.kernel - 1) * c.dilation;
  return t < 0 ? static_cast<const T*>(c.conv.data) + (t + tail) * c.conv.stride
               : static_cast<const T*>(c.normed.data) + t * c.normed.stride;
}

template <typename T>
void convolve_row(
    const PleCall& c,
    int t,
    const float* taps,
    const float* gated) {
  const int wide = c.streams * c.hidden;
  T* added = static_cast<T*>(c.added.data) + t * c.added.stride;
  for_lanes(wide, [&](int i, int count) {
    F acc = splat(0.0f);
    for (int j = 0; j < c.kernel; ++j) {
      F x = load_n(
          history_row<T>(c, t - (c.kernel - 1 - j) * c.dilation) + i,
          count);
      acc = fma(load_n(taps + int64_t{j} * wide + i, count), x, acc);
    }
    store_n(
        added + i,
        load_n(gated + i, count) + silu<T>(rounded<T>(acc)),
        count);
  });
}

template <typename T>
void ple_of(const PleCall& c) {
  const int n = c.n_rows;
  const int wide = c.streams * c.hidden;
  Scratch scratch;
  const Norms norms = {
      widened(c.norm_key, wide, scratch),
      widened(c.norm_query, wide, scratch),
      widened(c.norm_conv, wide, scratch)};
  const float* taps = widened(c.taps, c.kernel * wide, scratch);
  float* gated = scratch.floats(int64_t{n} * wide);
  const int parts = parts_for(int64_t{16} * n * wide, n);
  parallel_for(parts, [&](int part) {
    Scratch mine;
    float* work = mine.floats(2 * round_up(c.hidden, kLanes));
    for (int r = part_begin(n, parts, part); r < part_begin(n, parts, part + 1);
         ++r) {
      gate_row<T>(c, r, norms, work, gated + int64_t{r} * wide);
    }
  });
  parallel_for(parts, [&](int part) {
    for (int r = part_begin(n, parts, part); r < part_begin(n, parts, part + 1);
         ++r) {
      convolve_row<T>(c, r, taps, gated + int64_t{r} * wide);
    }
  });
  const int tail = (c.kernel - 1) * c.dilation;
  for (int j = 0; j < tail; ++j) {
    __builtin_memcpy(
        static_cast<T*>(c.conv_out.data) + j * c.conv_out.stride,
        history_row<T>(c, n - tail + j),
        wide * sizeof(T));
  }
}

} // namespace

void ple(const PleCall& call) {
  with_activation(call.type, [&](auto* t) {
    ple_of<std::remove_pointer_t<decltype(t)>>(call);
  });
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
