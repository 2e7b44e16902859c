/** Sparse attention before the scores: norms and rotations of q, k and the
 * index rows, pooled keys of the blocks that became complete. */
#include "kernels/cpu/families.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/product.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

namespace {

/** Rotates the pairs (j, j + half) in float; one rounding comes with the store.
 */
inline void rotate(float* v, const float* cos, const float* sin, int half) {
  for_lanes(half, [&](int j, int count) {
    F a = load_n(v + j, count), b = load_n(v + half + j, count);
    F c = load_n(cos + j, count), s = load_n(sin + j, count);
    store_n(v + j, fma(a, c, splat(0.0f) - b * s), count);
    store_n(v + half + j, fma(b, c, a * s), count);
  });
}

template <typename T>
void norm_and_rotate(
    const T* from,
    const float* norm,
    int dim,
    float eps,
    const float* cos,
    const float* sin,
    int half,
    float* work,
    T* to) {
  widen(from, work, dim);
  rms_norm<T>(work, norm, work, dim, eps);
  rotate(work, cos, sin, half);
  narrow(work, to, dim);
}

template <typename T>
struct Prepare {
  const QsaPrepareCall& c;
  const float* q_norm;
  const float* k_norm;
  const float* index_q_norm;
  const float* index_k_norm;

  void row(int r, float* work) const {
    const float* cos = c.cos + int64_t{r} * c.half;
    const float* sin = c.sin + int64_t{r} * c.half;
    const T* q_gate =
        static_cast<const T*>(c.q_gate.data) + r * c.q_gate.stride;
    const T* k = static_cast<const T*>(c.k.data) + r * c.k.stride;
    const T* v = static_cast<const T*>(c.v.data) + r * c.v.stride;
    const T* index = static_cast<const T*>(c.index.data) + r * c.index.stride;
    T* q_out = static_cast<T*>(c.q) + int64_t{r} * c.heads * c.head_dim;
    T* index_out =
        static_cast<T*>(c.index_q) + int64_t{r} * c.index_heads * c.index_dim;
    for (int h = 0; c.q != nullptr && h < c.heads; ++h) {
      norm_and_rotate(
          q_gate + int64_t{2} * h * c.head_dim,
          q_norm,
          c.head_dim,
          c.eps,
          cos,
          sin,
          c.half,
          work,
          q_out + int64_t{h} * c.head_dim);
    }
    for (int h = 0; h < c.kv_heads; ++h) {
      const int64_t at = (int64_t{h} * c.n_rows + r) * c.head_dim;
      norm_and_rotate(
          k + int64_t{h} * c.head_dim,
          k_norm,
          c.head_dim,
          c.eps,
          cos,
          sin,
          c.half,
          work,
          static_cast<T*>(c.k_out) + at);
      __builtin_memcpy(
          static_cast<T*>(c.v_out) + at,
          v + int64_t{h} * c.head_dim,
          c.head_dim * sizeof(T));
    }
    for (int h = 0; c.q != nullptr && h < c.index_heads; ++h) {
      norm_and_rotate(
          index + int64_t{h} * c.index_dim,
          index_q_norm,
          c.index_dim,
          c.eps,
          cos,
          sin,
          c.half,
          work,
          index_out + int64_t{h} * c.index_dim);
    }
    __builtin_memcpy(
        static_cast<T*>(c.raw) + int64_t{r} * c.index_dim,
        index + int64_t{c.index_heads} * c.index_dim,
        c.index_dim * sizeof(T));
  }

  /** Raw key of token t of the first block that is completed here. */
  const T* raw_key(int t) const {
    return t < c.tail
               ? static_cast<const T*>(c.raw_tail.data) + t * c.raw_tail.stride
               : static_cast<const T*>(c.index.data) +
                     (t - c.tail) * c.index.stride +
                     int64_t{c.index_heads} * c.index_dim;
  }

  void block(int b, float* work) const {
    const F share = splat(1.0f / static_cast<float>(c.ratio));
    for_lanes(c.index_dim, [&](int i, int count) {
      F total = splat(0.0f);
      for (int j = 0; j < c.ratio; ++j) {
        total = total + load_n(raw_key(b * c.ratio + j) + i, count);
      }
      store_n(work + i, rounded<T>(total * share), count);
    });
    rms_norm<T>(work, index_k_norm, work, c.index_dim, c.eps);
    rotate(
        work,
        c.block_cos + int64_t{b} * c.half,
        c.block_sin + int64_t{b} * c.half,
        c.half);
    narrow(
        work,
        static_cast<T*>(c.pooled) + int64_t{b} * c.index_dim,
        c.index_dim);
  }
};

} // namespace

void qsa_prepare(const QsaPrepareCall& c) {
  with_activation(c.type, [&](auto* t) {
    Scratch scratch;
    const Prepare<std::remove_pointer_t<decltype(t)>> prepare = {
        c,
        widened(c.q_norm, c.head_dim, scratch),
        widened(c.k_norm, c.head_dim, scratch),
        widened(c.index_q_norm, c.index_dim, scratch),
        widened(c.index_k_norm, c.index_dim, scratch)};
    const int units = c.n_rows + c.n_blocks;
    const int64_t row_work = int64_t{16} * (c.heads + c.kv_heads) * c.head_dim;
    const int parts = parts_for(c.n_rows * row_work, units);
    parallel_for(parts, [&](int part) {
      Scratch mine;
      float* work =
          mine.floats(c.head_dim > c.index_dim ? c.head_dim : c.index_dim);
      for (int u = part_begin(units, parts, part);
           u < part_begin(units, parts, part + 1);
           ++u) {
        u < c.n_rows ? prepare.row(u, work) : prepare.block(u - c.n_rows, work);
      }
    });
  });
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
