/** Hyper-connections: write of a layer's output, grouped norm, low-rank gate,
 * mix. */
#include "kernels/cpu/families.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/product.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

namespace {

/** The streams of row r as floats, after the write where there is one. */
template <typename T>
void streams_of(const HyperCall& c, int r, float* x) {
  const T* from = static_cast<const T*>(c.x.data) + r * c.x.stride;
  if (c.y.data == nullptr) {
    widen(from, x, c.streams * c.hidden);
    return;
  }
  const T* y = static_cast<const T*>(c.y.data) + r * c.y.stride;
  const T* inject = static_cast<const T*>(c.inject.data) + r * c.inject.stride;
  T* to = static_cast<T*>(c.x_out.data) + r * c.x_out.stride;
  for (int s = 0; s < c.streams; ++s) {
    const F gate = splat(load1(inject + s));
    const int at = s * c.hidden;
    for_lanes(c.hidden, [&](int i, int count) {
      F v =
          mul_add<T>(gate, load_n(y + i, count), load_n(from + at + i, count));
      store_n(x + at + i, v, count);
      store_n(to + at + i, v, count);
    });
  }
}

template <typename T>
void mix_streams(const HyperCall& c, const float* gate, const float* z, T* to) {
  const F share = splat(1.0f / static_cast<float>(c.streams));
  for_lanes(c.hidden, [&](int i, int count) {
    F total = rounded<T>(load_n(gate + i, count) * load_n(z + i, count));
    for (int s = 1; s < c.streams; ++s) {
      const int at = s * c.hidden + i;
      total =
          mul_add<T>(load_n(gate + at, count), load_n(z + at, count), total);
    }
    store_n(to + i, total * share, count);
  });
}

template <typename T>
void hyper_of(const HyperCall& c) {
  const int n = c.n_rows;
  const int wide = c.streams * c.hidden;
  Scratch scratch;
  const float* norm =
      c.mix.data == nullptr ? nullptr : widened(c.norm, wide, scratch);
  float* z = scratch.floats(int64_t{n} * wide);
  const int row_parts = parts_for(int64_t{4} * n * wide, n);
  parallel_for(row_parts, [&](int part) {
    for (int r = part_begin(n, row_parts, part);
         r < part_begin(n, row_parts, part + 1);
         ++r) {
      float* row = z + int64_t{r} * wide;
      streams_of<T>(c, r, row);
      for (int s = 0; norm != nullptr && s < c.streams; ++s) {
        const int at = s * c.hidden;
        rms_norm<T>(row + at, norm + at, row + at, c.hidden, c.eps);
      }
    }
  });
  if (norm == nullptr) {
    return;
  }

  const int rank = c.gates[0].out;
  const F share = splat(1.0f / static_cast<float>(c.streams));
  float* low = scratch.floats(int64_t{n} * rank);
  float* gate = scratch.floats(int64_t{n} * wide);
  all_products(
      row_pointers(z, n, wide, scratch),
      n,
      c.gates,
      c.inject_out.data == nullptr ? 1 : 2,
      [&](int m, int r, int begin, int end, const float* values) {
        T* inject =
            static_cast<T*>(c.inject_out.data) + r * c.inject_out.stride;
        for_lanes(end - begin, [&](int i, int count) {
          F v = rounded<T>(rounded<T>(load_n(values + i, count)) * share);
          if (m == 0) {
            store_n(low + int64_t{r} * rank + begin + i, silu<T>(v), count);
          } else {
            store_n(
                inject + begin + i,
                rounded<T>(sigmoid(v)) * splat(2.0f),
                count);
          }
        });
      });
  all_products(
      row_pointers(low, n, rank, scratch),
      n,
      &c.up,
      1,
      [&](int, int r, int begin, int end, const float* values) {
        for_lanes(end - begin, [&](int i, int count) {
          F v = rounded<T>(sigmoid(rounded<T>(load_n(values + i, count))));
          store_n(gate + int64_t{r} * wide + begin + i, v, count);
        });
      });
  parallel_for(row_parts, [&](int part) {
    for (int r = part_begin(n, row_parts, part);
         r < part_begin(n, row_parts, part + 1);
         ++r) {
      mix_streams(
          c,
          gate + int64_t{r} * wide,
          z + int64_t{r} * wide,
          static_cast<T*>(c.mix.data) + r * c.mix.stride);
    }
  });
}

} // namespace

void hyper(const HyperCall& call) {
  with_activation(call.type, [&](auto* t) {
    hyper_of<std::remove_pointer_t<decltype(t)>>(call);
  });
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
