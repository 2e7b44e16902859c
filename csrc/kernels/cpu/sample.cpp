/** The best candidates of logits rows and the parts of their normaliser. */
#include "base/exp_sum.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/product.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

namespace {

/** The `most` largest values put so far, in descending order; of equal ones
 *  those that came first. */
struct Best {
  float* value;
  int32_t* id;
  int most;
  int n = 0;

  void put(float v, int32_t i) {
    if (n == most && !(v > value[n - 1])) {
      return;
    }
    int at = n < most ? n++ : n - 1;
    for (; at > 0 && v > value[at - 1]; --at) {
      value[at] = value[at - 1];
      id[at] = id[at - 1];
    }
    value[at] = v;
    id[at] = i;
  }
};

/** Row r times the scale, -inf up to a whole block. */
template <typename T>
void scale_row(const SampleCall& c, int r, float* s, int padded) {
  const T* from = static_cast<const T*>(c.logits.data) + r * c.logits.stride;
  const F scale = splat(c.scale);
  for_lanes(c.size, [&](int i, int count) {
    store_n(s + i, load_n(from + i, count) * scale, count);
  });
  for (int i = c.size; i < padded; ++i) {
    s[i] = -__builtin_inff();
  }
}

float block_maximum(const float* s) {
  F most = splat(-__builtin_inff());
  for (int i = 0; i < kExpBlock; i += kLanes) {
    most = at_least(most, load(s + i));
  }
  return max(most);
}

/** The m-th largest of the blocks' maxima: that many values reach it. */
float bound_of(const float* block_max, int n_blocks, const Best& scratch) {
  if (scratch.most > n_blocks) {
    return -__builtin_inff();
  }
  Best best = scratch;
  for (int b = 0; b < n_blocks; ++b) {
    best.put(block_max[b], b);
  }
  return best.value[best.most - 1];
}

void by_id(float* value, int32_t* id, int n) {
  for (int i = 1; i < n; ++i) {
    const float v = value[i];
    const int32_t key = id[i];
    int at = i;
    for (; at > 0 && id[at - 1] > key; --at) {
      value[at] = value[at - 1];
      id[at] = id[at - 1];
    }
    value[at] = v;
    id[at] = key;
  }
}

template <typename T>
void sample_row(const SampleCall& c, int r) {
  const int n_blocks = (c.size + kExpBlock - 1) / kExpBlock;
  Scratch scratch;
  float* s = scratch.floats(size_t(n_blocks) * kExpBlock);
  float* block_max = scratch.floats(n_blocks);
  float* block_sum = scratch.floats(n_blocks);
  scale_row<T>(c, r, s, n_blocks * kExpBlock);
  float most = -__builtin_inff();
  for (int b = 0; b < n_blocks; ++b) {
    const float* block = s + b * kExpBlock;
    block_max[b] = block_maximum(block);
    block_sum[b] = exp_sum_of_block<NativeF, NativeI>(block, block_max[b]);
    most = block_max[b] > most ? block_max[b] : most;
  }
  c.total[2 * r] = most;
  c.total[2 * r + 1] =
      exp_sum_of_row<NativeF, NativeI>(block_max, block_sum, n_blocks, most);

  Best best{c.top + int64_t{r} * c.most, c.ids + int64_t{r} * c.most, c.most};
  const float bound = bound_of(block_max, n_blocks, best);
  const auto reaching = [&](float least, auto use) {
    for (int b = 0; b < n_blocks; ++b) {
      for (int i = b * kExpBlock;
           block_max[b] >= least && i < c.size && i < (b + 1) * kExpBlock;
           ++i) {
        if (s[i] >= least) {
          use(i);
        }
      }
    }
  };
  reaching(bound, [&](int i) { best.put(s[i], i); });
  while (best.n < best.most) { // a row with NaN
    best.value[best.n] = -__builtin_inff();
    best.id[best.n++] = -1;
  }
  const float cutoff = best.value[best.most - 1];
  int32_t ties = 0;
  reaching(cutoff, [&](int i) { ties += s[i] == cutoff; });
  c.ties[r] = ties;
  by_id(best.value, best.id, best.most);
}

} // namespace

void sample(const SampleCall& c) {
  with_type(c.type, [&](auto* t) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(t)>>;
    const int parts = parts_for(int64_t{32} * c.size * c.n_rows, c.n_rows);
    parallel_for(parts, [&](int part) {
      for (int r = part_begin(c.n_rows, parts, part);
           r < part_begin(c.n_rows, parts, part + 1);
           ++r) {
        sample_row<T>(c, r);
      }
    });
  });
}

void pick(const PickCall& c) {
  Scratch scratch;
  const float most = c.total[0];
  float* mass = scratch.floats(round_up(c.n, kNative));
  for (int i = 0; i < c.n; i += kNative) {
    const NativeF s = load_or<NativeF>(c.top, i, c.n, most);
    const NativeF e = exp_nonpositive<NativeF, NativeI>(s - most);
    __builtin_memcpy(mass + i, &e, sizeof e);
  }
  const auto better = [&](int j, int i) { // of equal ones the lower id
    return c.top[j] > c.top[i] || (c.top[j] == c.top[i] && j < i);
  };
  const bool nucleus = c.top_p < 1;
  const float limit = c.top_p * c.total[1];
  float* kept = scratch.floats(c.n);
  float whole = 0;
  for (int i = 0; i < c.n; ++i) {
    int rank = 0;
    float before = 0;
    for (int j = 0; j < c.n; ++j) {
      if (better(j, i)) {
        ++rank;
        before += mass[j];
      }
    }
    kept[i] = rank < c.k && !(nucleus && before >= limit) ? mass[i] : 0;
    whole += kept[i];
  }
  const float target = c.u * whole;
  float sum = 0;
  *c.token = c.ids[0];
  for (int i = 0; i < c.n && !(sum > target); ++i) {
    if (kept[i] > 0) {
      sum += kept[i];
      *c.token = c.ids[i];
    }
  }
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
