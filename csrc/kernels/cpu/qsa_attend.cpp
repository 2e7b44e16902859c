/** Sparse attention: block scores, exact top-k, attention over the visible
 * rows. */
#include "kernels/cpu/families.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/product.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

namespace {

/** Bits that order like the float does. */
inline uint32_t ordered(float v) {
  const uint32_t u = __builtin_bit_cast(uint32_t, v);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/** The `keep` largest of keys[0, n) as ascending ids; among equal keys the
 * larger id ranks higher. keep <= n. Overwrites some[0, n). */
inline void select_largest(
    const uint32_t* keys,
    int n,
    int keep,
    uint32_t* some,
    int32_t* ids) {
  constexpr int kDigit = 11;
  uint32_t smallest = 0; // that is kept; its upper digits are found first
  int left = keep;       // kept keys that share them
  const uint32_t* from = keys;
  int count = n; // keys that share them
  for (int shift = 32 - kDigit;; shift -= kDigit) {
    const int low = shift > 0 ? shift : 0;
    // Two tables: neighbours often count in one place.
    int counts[2][1 << kDigit] = {};
    auto digit_of = [&](uint32_t key) {
      return key >> low & ((1u << kDigit) - 1);
    };
    for (int i = 0; i < count; ++i) {
      ++counts[i & 1][digit_of(from[i])];
    }
    uint32_t digit = (1u << kDigit) - 1;
    auto found = [&] { return counts[0][digit] + counts[1][digit]; };
    while (found() < left) {
      left -= found();
      --digit;
    }
    smallest |= digit << low;
    if (low == 0) {
      break;
    }
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      some[kept] = from[i];
      kept += digit_of(from[i]) == digit;
    }
    from = some;
    count = kept;
  }
  int at = keep;
  for (int i = n - 1; at > 0; --i) {
    if (keys[i] > smallest || (keys[i] == smallest && left-- > 0)) {
      ids[--at] = i;
    }
  }
}

/** Visible blocks of rows [first, first + n) of the call, into c.blocks. */
template <typename T>
void select_blocks(const QsaAttendCall& c, int first, int n) {
  const int keep = c.budget_blocks;
  auto blocks_of = [&](int r) { return (c.first + r + 1) / c.ratio; };
  const int most = blocks_of(first + n - 1);
  Scratch scratch;
  float* dots = nullptr;
  const int64_t ld = round_up(most, kLanes);
  if (most > keep) {
    dots = scratch.floats(int64_t{n} * c.index_heads * ld);
    float* q = scratch.floats(int64_t{n} * c.index_heads * c.index_dim);
    for (int r = 0; r < n; ++r) {
      widen(
          static_cast<const T*>(c.index_q.data) +
              (first + r) * c.index_q.stride,
          q + int64_t{r} * c.index_heads * c.index_dim,
          c.index_heads * c.index_dim);
    }
    Weights keys{};
    keys.data = c.pooled.data;
    keys.row_bytes = c.pooled.stride * static_cast<int64_t>(sizeof(T));
    keys.out = most;
    keys.in = c.index_dim;
    keys.type = c.type;
    all_products(
        row_pointers(q, n * c.index_heads, c.index_dim, scratch),
        n * c.index_heads,
        &keys,
        1,
        [&](int, int r, int begin, int end, const float* values) {
          narrow(values, dots + r * ld + begin, end - begin);
        });
  }
  const int parts = parts_for(int64_t{32} * n * most, n);
  parallel_for(parts, [&](int part) {
    Scratch mine;
    float* scores = mine.floats(ld);
    auto* keys = static_cast<uint32_t*>(mine.bytes(ld * sizeof(uint32_t)));
    auto* some = static_cast<uint32_t*>(mine.bytes(ld * sizeof(uint32_t)));
    for (int r = part_begin(n, parts, part); r < part_begin(n, parts, part + 1);
         ++r) {
      int32_t* ids = c.blocks + int64_t{first + r} * keep;
      const int count = blocks_of(first + r);
      if (count <= keep) {
        for (int b = 0; b < keep; ++b) {
          ids[b] = b < count ? b : -1;
        }
        continue;
      }
      // Ranks: the score less 1e-12 a block, in float, so that ids settle ties.
      const float* row = dots + int64_t{r} * c.index_heads * ld;
      const float divisor = __builtin_sqrtf(static_cast<float>(c.index_dim));
      for (int b = 0; b < count; ++b) {
        scores[b] = row[b] > 0.0f ? row[b] : 0.0f;
      }
      for (int h = 1; h < c.index_heads; ++h) {
        const float* dot = row + h * ld;
        for (int b = 0; b < count; ++b) {
          scores[b] += dot[b] > 0.0f ? dot[b] : 0.0f;
        }
      }
      for (int b = 0; b < count; ++b) {
        keys[b] = ordered(scores[b] / divisor - static_cast<float>(b) * 1e-12f);
      }
      select_largest(keys, count, keep, some, ids);
    }
  });
}

/** Heads that share one pass over the value rows. */
constexpr int kHeads = 4;

/** out[g] = sum over tokens of p[g][t] * v[t] for G heads, 64 columns from d.
 */
template <int G, typename T>
QWENMTP_INLINE void weighted_sum(
    const float* const* p,
    const T* const* v,
    int tokens,
    int d,
    float* const* out) {
  F acc[G][4];
  for (int g = 0; g < G; ++g) {
    for (int i = 0; i < 4; ++i) {
      acc[g][i] = splat(0.0f);
    }
  }
  for (int t = 0; t < tokens; ++t) {
    const F v4[4] = {
        load(v[t] + d),
        load(v[t] + d + 16),
        load(v[t] + d + 32),
        load(v[t] + d + 48)};
    for (int g = 0; g < G; ++g) {
      const F w = splat(p[g][t]);
      for (int i = 0; i < 4; ++i) {
        acc[g][i] = fma(w, v4[i], acc[g][i]);
      }
    }
  }
  for (int g = 0; g < G; ++g) {
    for (int i = 0; i < 4; ++i) {
      store(out[g] + d + 16 * i, acc[g][i]);
    }
  }
}

template <typename T>
void weighted_sums(
    const float* const* p,
    const T* const* v,
    int heads,
    int tokens,
    int dim,
    float* const* out) {
  int d = 0;
  for (; d + 64 <= dim; d += 64) {
    for (int g = 0; g < heads; g += kHeads) {
      switch (heads - g < kHeads ? heads - g : kHeads) {
        case 4:
          weighted_sum<4>(p + g, v, tokens, d, out + g);
          break;
        case 3:
          weighted_sum<3>(p + g, v, tokens, d, out + g);
          break;
        case 2:
          weighted_sum<2>(p + g, v, tokens, d, out + g);
          break;
        default:
          weighted_sum<1>(p + g, v, tokens, d, out + g);
      }
    }
  }
  for (; d < dim; ++d) {
    for (int g = 0; g < heads; ++g) {
      float acc = 0.0f;
      for (int t = 0; t < tokens; ++t) {
        acc = fma(p[g][t], load1(v[t] + d), acc);
      }
      out[g][d] = acc;
    }
  }
}

/** p = e^(scale * (p - max)) over n scores; returns their sum. */
inline float exponentials(float* p, int n, float scale) {
  float largest = p[0];
  for (int i = 1; i < n; ++i) {
    largest = p[i] > largest ? p[i] : largest;
  }
  F total = splat(0.0f);
  for_lanes(n, [&](int i, int count) {
    store_n(
        p + i,
        exp((load_n(p + i, count) - splat(largest)) * splat(scale)),
        count);
    total = total + load_n(p + i, count);
  });
  return sum(total);
}

/** One row and one KV head: all query heads of its group. */
template <typename T>
void attend(const QsaAttendCall& c, int r, int kv_head) {
  const int group = c.heads / c.kv_heads;
  const int dim = c.head_dim;
  const int position = c.first + r;
  const int32_t* blocks = c.blocks + int64_t{r} * c.budget_blocks;
  Scratch scratch;
  const int most = (c.budget_blocks + 1) * c.ratio;
  auto** k = static_cast<const T**>(scratch.bytes(most * sizeof(T*)));
  auto** v = static_cast<const T**>(scratch.bytes(most * sizeof(T*)));
  int tokens = 0;
  auto see = [&](int64_t token) {
    k[tokens] = static_cast<const T*>(c.keys) + kv_head * c.key_head +
                token * c.key_row;
    v[tokens] = static_cast<const T*>(c.values) + kv_head * c.value_head +
                token * c.value_row;
    ++tokens;
  };
  for (int i = 0; i < c.budget_blocks && blocks[i] >= 0; ++i) {
    for (int j = 0; j < c.ratio; ++j) {
      see(int64_t{blocks[i]} * c.ratio + j);
    }
  }
  for (int t = (position + 1) / c.ratio * c.ratio; t <= position; ++t) {
    see(t);
  }

  const int first_head = kv_head * group;
  const Rows mine = {
      static_cast<const T*>(c.q.data) + r * c.q.stride +
          int64_t{first_head} * dim,
      dim};
  const auto* q = float_rows<T>(mine, group, dim, scratch);
  const int64_t ld = round_up(tokens, kLanes);
  float* p = scratch.floats(group * ld);
  float* out = scratch.floats(int64_t{group} * dim);
  auto** p_rows =
      static_cast<const float**>(scratch.bytes(group * sizeof(float*)));
  auto** out_rows = static_cast<float**>(scratch.bytes(group * sizeof(float*)));
  auto* sums = scratch.floats(group);
  products_of_rows(q, group, k, tokens, dim, p, ld);
  for (int g = 0; g < group; ++g) {
    sums[g] = exponentials(
        p + g * ld,
        tokens,
        1.0f / __builtin_sqrtf(static_cast<float>(dim)));
    p_rows[g] = p + g * ld;
    out_rows[g] = out + int64_t{g} * dim;
  }
  weighted_sums(p_rows, v, group, tokens, dim, out_rows);
  for (int g = 0; g < group; ++g) {
    const int head = first_head + g;
    const T* gate = static_cast<const T*>(c.q_gate.data) + r * c.q_gate.stride +
                    (int64_t{2} * head + 1) * dim;
    T* y = static_cast<T*>(c.y.data) + r * c.y.stride + int64_t{head} * dim;
    const F total = splat(sums[g]);
    for_lanes(dim, [&](int i, int count) {
      F o = rounded<T>(load_n(out_rows[g] + i, count) / total);
      store_n(y + i, o * rounded<T>(sigmoid(load_n(gate + i, count))), count);
    });
  }
}

} // namespace

void qsa_attend(const QsaAttendCall& c) {
  constexpr int kRowBlock = 16; // bounds the scratch of the scores
  with_activation(c.type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    for (int first = 0; first < c.n_rows; first += kRowBlock) {
      select_blocks<T>(
          c,
          first,
          c.n_rows - first < kRowBlock ? c.n_rows - first : kRowBlock);
    }
    const int units = c.n_rows * c.kv_heads;
    const int64_t visible = (c.budget_blocks + 1) * c.ratio;
    const int64_t tokens =
        c.first + c.n_rows < visible ? c.first + c.n_rows : visible;
    const int parts =
        parts_for(2 * tokens * c.n_rows * c.heads * c.head_dim, units);
    parallel_for(parts, [&](int part) {
      for (int u = part_begin(units, parts, part);
           u < part_begin(units, parts, part + 1);
           ++u) {
        attend<T>(c, u / c.kv_heads, u % c.kv_heads);
      }
    });
  });
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
