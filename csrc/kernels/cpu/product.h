/** Products of rows with weight matrices: y[r][o] = dot(x[r], W[o]). Every dot
 *  keeps sixteen partial sums, lane l over the columns 16 j + l in order, added
 *  by the tree of sum(). How rows and outputs are tiled, and whether a weight
 * is decoded once or once per tile, never changes a bit. */
#pragma once

#include <utility>

#include "kernels/cpu/body.h"
#include "kernels/cpu/simd.h"
#include "kernels/pool.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

template <typename Body>
void parallel_for(int parts, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  run_parts(
      parts,
      [](void* context, int i) { (*static_cast<Plain*>(context))(i); },
      &body);
}

/** First index of part i when n things go to `parts` parts. */
inline int part_begin(int64_t n, int parts, int i) {
  return static_cast<int>(n * i / parts);
}

/** Parts for a job of `work` multiply-adds: one while it is not worth waking a
 *  thread, at most four per thread. */
inline int parts_for(int64_t work, int64_t most) {
  constexpr int64_t kWorth = 16384;
  int64_t parts = work / kWorth;
  parts = parts < 4 * threads() ? parts : 4 * threads();
  parts = parts < most ? parts : most;
  return parts < 1 ? 1 : static_cast<int>(parts);
}

template <typename F0>
decltype(auto) with_type(Type type, F0&& f) {
  switch (type) {
    case Type::bf16:
      return f(static_cast<const Bf16*>(nullptr));
    case Type::f16:
      return f(static_cast<const F16*>(nullptr));
    default:
      return f(static_cast<const float*>(nullptr));
  }
}

template <typename T>
inline void widen(const T* from, float* to, int n) {
  for_lanes(n, [&](int i, int count) {
    store_n(to + i, load_n(from + i, count), count);
  });
}

/** n values as floats: in place when they are, else in scratch. */
inline const float* widened(Vector v, int n, Scratch& scratch) {
  if (v.type == Type::f32) {
    return static_cast<const float*>(v.data);
  }
  float* to = scratch.floats(n);
  with_type(v.type, [&](auto* t) {
    widen(static_cast<decltype(t)>(v.data), to, n);
  });
  return to;
}

/** out[r][o - begin] = dot(x[r], row o of w) for begin <= o < end; rows of
 * `out` are ld >= end - begin rounded up to four floats apart, and may be
 * written so far. */
void products(
    const float* const* x,
    int n,
    const Weights& w,
    int64_t expert,
    int begin,
    int end,
    float* out,
    int64_t ld);

/** The same for `count` rows of T at any addresses in the place of a matrix. */
template <typename T>
void products_of_rows(
    const float* const* x,
    int n,
    const T* const* rows,
    int count,
    int in,
    float* out,
    int64_t ld);

inline int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

/** Rows up to this many decode weights inside the tile; more decode panels. */
inline constexpr int kFewRows = 8;

/** Outputs of one panel: what stays in the second-level cache as floats. */
inline int panel_outputs(int in) {
  constexpr int kPanelFloats = 65536;
  int outputs = kPanelFloats / (in > 0 ? in : 1) / 4 * 4;
  return outputs < 4 ? 4 : outputs;
}

/** All outputs of several matrices of one width, over all threads;
 *  emit(m, r, begin, end, values): the outputs [begin, end) of row r for matrix
 * m, from any thread, each output once. */
template <typename Emit>
void all_products(
    const float* const* x,
    int n,
    const Weights* w,
    int count,
    Emit emit) {
  constexpr int kRowChunk = 128;
  const bool few = n <= kFewRows;
  const int chunks = few ? 1 : (n + kRowChunk - 1) / kRowChunk;
  const int chunk_rows = few ? n : kRowChunk;
  auto outputs_of = [&](int m) { return few ? 4 : panel_outputs(w[m].in); };
  int starts[kMaxMatrices + 1] = {0};
  int64_t work = 0;
  for (int m = 0; m < count; ++m) {
    starts[m + 1] =
        starts[m] + (w[m].out + outputs_of(m) - 1) / outputs_of(m) * chunks;
    work += int64_t{n} * w[m].out * w[m].in;
  }
  const int units = starts[count];
  const int parts = few ? parts_for(work, units) : units;
  parallel_for(parts, [&](int part) {
    int u = part_begin(units, parts, part);
    const int u_end = part_begin(units, parts, part + 1);
    for (int m = 0; u < u_end; ++m) {
      while (u < u_end && u < starts[m + 1]) {
        const int at = u - starts[m];
        const int last =
            few ? (u_end < starts[m + 1] ? u_end : starts[m + 1]) : u + 1;
        const int begin = at / chunks * outputs_of(m);
        int end = begin + (last - u) * outputs_of(m);
        end = end < w[m].out ? end : w[m].out;
        const int r0 = at % chunks * chunk_rows;
        const int rows = n - r0 < chunk_rows ? n - r0 : chunk_rows;
        Scratch scratch;
        const int64_t ld = round_up(end - begin, 4);
        float* out = scratch.floats(rows * ld);
        products(x + r0, rows, w[m], 0, begin, end, out, ld);
        for (int r = 0; r < rows; ++r) {
          emit(m, r0 + r, begin, end, out + r * ld);
        }
        u = last;
      }
    }
  });
}

/** Stores n floats as T. */
template <typename T>
QWENMTP_INLINE void narrow(const float* from, T* to, int n) {
  for_lanes(n, [&](int i, int count) {
    store_n(to + i, load_n(from + i, count), count);
  });
}

inline const float* const* row_pointers(
    const float* first,
    int n,
    int64_t stride,
    Scratch& scratch) {
  auto** rows = static_cast<const float**>(scratch.bytes(n * sizeof(float*)));
  for (int r = 0; r < n; ++r) {
    rows[r] = first + r * stride;
  }
  return rows;
}

/** Pointers to n rows as floats; bf16 rows are widened into scratch. */
template <typename T>
const float* const* float_rows(Rows x, int n, int width, Scratch& scratch) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return row_pointers(
        static_cast<const float*>(x.data),
        n,
        x.stride,
        scratch);
  } else {
    float* wide = scratch.floats(int64_t{n} * width);
    for (int r = 0; r < n; ++r) {
      widen(
          static_cast<const T*>(x.data) + r * x.stride,
          wide + int64_t{r} * width,
          width);
    }
    return row_pointers(wide, n, width, scratch);
  }
}

/** body(T*) with the activation type. */
template <typename Body>
void with_activation(Type type, Body body) {
  if (type == Type::bf16) {
    body(static_cast<Bf16*>(nullptr));
  } else {
    body(static_cast<float*>(nullptr));
  }
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
