/** Rows of the token table. */
#include "kernels/cpu/families.h"
#include "kernels/cpu/product.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

namespace {

/** Code i of a row of `bits`-wide codes, low bits first. */
uint32_t code_at(const uint32_t* words, int i, int bits) {
  const int shift = i * bits % 32;
  uint64_t two = words[i * bits / 32];
  if (shift + bits > 32) {
    two |= uint64_t{words[i * bits / 32 + 1]} << 32;
  }
  return static_cast<uint32_t>(two >> shift) & ((1u << bits) - 1);
}

template <typename T>
void affine_row(const Weights& w, int64_t id, float* to, Scratch& scratch) {
  const int n_groups = w.in / w.group;
  const auto at = [&](const void* all) {
    const auto row = id * w.scale_row * (w.type == Type::f32 ? 4 : 2);
    return Vector{static_cast<const char*>(all) + row, w.type};
  };
  const float* scale = widened(at(w.scales), n_groups, scratch);
  const float* bias = widened(at(w.biases), n_groups, scratch);
  const auto* words = reinterpret_cast<const uint32_t*>(
      static_cast<const char*>(w.data) + id * w.row_bytes);
  for (int i = 0; i < w.in; ++i) {
    const auto code = static_cast<float>(code_at(words, i, w.bits));
    const int group = i / w.group;
    to[i] = rounded<T>(scale[group] * code) + bias[group];
  }
}

} // namespace

void embed(const EmbedCall& c) {
  const Weights& w = c.table;
  with_activation(c.type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const int parts = parts_for(int64_t{8} * w.in * c.n_rows, c.n_rows);
    parallel_for(parts, [&](int part) {
      for (int r = part_begin(c.n_rows, parts, part);
           r < part_begin(c.n_rows, parts, part + 1);
           ++r) {
        Scratch scratch;
        float* row = scratch.floats(round_up(w.in, kLanes));
        const int64_t id = c.ids[r] < 0 ? 0 : c.ids[r];
        if (w.bits > 0) {
          affine_row<T>(w, id, row, scratch);
        } else {
          with_type(w.type, [&](auto* from) {
            const auto* all = static_cast<const char*>(w.data);
            widen(
                reinterpret_cast<decltype(from)>(all + id * w.row_bytes),
                row,
                w.in);
          });
        }
        T* y = static_cast<T*>(c.y) + int64_t{r} * c.copies * w.in;
        for (int copy = 0; copy < c.copies; ++copy) {
          narrow(row, y + copy * w.in, w.in);
        }
      }
    });
  });
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
