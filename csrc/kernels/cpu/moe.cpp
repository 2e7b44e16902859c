/** Mixture of experts with a shared expert: router, gathered products, combine.
 */
#include "kernels/cpu/families.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/product.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

namespace {

/** Rows that one matrix is multiplied with: x[i] -> slot[i]. */
struct Group {
  const Weights* w;
  int64_t expert;
  const float* const* x;
  const int* slots;
  int n;
};

/** Every output of every group over all threads; emit(group, begin, end,
 * values, ld), values[i * ld] being row i of the group. */
template <typename Emit>
void grouped_products(const Group* groups, int count, Emit emit) {
  int64_t work = 0;
  int64_t outputs = 0;
  for (int g = 0; g < count; ++g) {
    work += int64_t{groups[g].n} * groups[g].w->out * groups[g].w->in;
    outputs += groups[g].w->out;
  }
  const int64_t chunk = round_up(outputs / parts_for(work, outputs) + 1, 4);
  Scratch scratch;
  auto* starts = static_cast<int*>(scratch.bytes((count + 1) * sizeof(int)));
  auto* sizes = static_cast<int*>(scratch.bytes(count * sizeof(int)));
  starts[0] = 0;
  for (int g = 0; g < count; ++g) {
    const int panel = panel_outputs(groups[g].w->in);
    sizes[g] = chunk < panel ? static_cast<int>(chunk) : panel;
    starts[g + 1] = starts[g] + (groups[g].w->out + sizes[g] - 1) / sizes[g];
  }
  const int parts = parts_for(work, starts[count]);
  parallel_for(parts, [&](int part) {
    int g = 0;
    const int end_unit = part_begin(starts[count], parts, part + 1);
    for (int u = part_begin(starts[count], parts, part); u < end_unit; ++u) {
      while (u >= starts[g + 1]) {
        ++g;
      }
      const Group& group = groups[g];
      const int begin = (u - starts[g]) * sizes[g];
      const int end =
          begin + sizes[g] < group.w->out ? begin + sizes[g] : group.w->out;
      const int64_t ld = round_up(end - begin, 4);
      Scratch mine;
      float* values = mine.floats(group.n * ld);
      products(
          group.x,
          group.n,
          *group.w,
          group.expert,
          begin,
          end,
          values,
          ld);
      emit(g, begin, end, values, ld);
    }
  });
}

/** ids and weights of the top_k experts of a row by (p, id) ascending. */
template <typename T>
void route(
    const float* logits,
    int n_experts,
    int top_k,
    int32_t* ids,
    float* weights,
    float* p) {
  float largest = logits[0];
  for (int e = 1; e < n_experts; ++e) {
    largest = logits[e] > largest ? logits[e] : largest;
  }
  F total = splat(0.0f);
  for_lanes(n_experts, [&](int i, int count) {
    store_n(p + i, exp(load_n(logits + i, count) - splat(largest)), count);
    total = total + load_n(p + i, count);
  });
  const F share = splat(1.0f / sum(total));
  for_lanes(n_experts, [&](int i, int count) {
    store_n(p + i, rounded<T>(load_n(p + i, count) * share), count);
  });

  // Ids arrive in ascending order: among equal p the newcomer ranks higher.
  int held = 0;
  for (int e = 0; e < n_experts; ++e) {
    int at = held;
    if (held < top_k) {
      for (++held; at > 0 && weights[at - 1] > p[e]; --at) {
        weights[at] = weights[at - 1];
        ids[at] = ids[at - 1];
      }
    } else if (p[e] >= weights[0]) {
      for (at = 0; at + 1 < top_k && weights[at + 1] <= p[e]; ++at) {
        weights[at] = weights[at + 1];
        ids[at] = ids[at + 1];
      }
    } else {
      continue;
    }
    weights[at] = p[e];
    ids[at] = e;
  }
  float kept = weights[0];
  for (int i = 1; i < top_k; ++i) {
    kept = rounded<T>(kept + weights[i]);
  }
  for (int i = 0; i < top_k; ++i) {
    weights[i] = rounded<T>(weights[i] / kept);
  }
}

/** to = silu(gate) * up in T. */
template <typename T>
void swiglu(const float* gate, const float* up, float* to, int n) {
  for_lanes(n, [&](int i, int count) {
    F g = silu<T>(rounded<T>(load_n(gate + i, count)));
    store_n(to + i, rounded<T>(g * rounded<T>(load_n(up + i, count))), count);
  });
}

/** y = sum over slots of w * expert, in eight partial sums, plus the shared
 * term. */
template <typename T>
void combine(
    const float* experts,
    const float* weights,
    int top_k,
    const float* shared,
    float shared_weight,
    int hidden,
    T* y) {
  constexpr int kPartials = 8;
  const int partials = top_k < kPartials ? top_k : kPartials;
  for_lanes(hidden, [&](int i, int count) {
    F partial[kPartials];
    for (F& p : partial) {
      p = splat(0.0f);
    }
    for (int s = 0; s < top_k; ++s) {
      F& p = partial[s % kPartials];
      p = mul_add<T>(
          load_n(experts + int64_t{s} * hidden + i, count),
          splat(weights[s]),
          p);
    }
    F total = partial[0];
    for (int s = 1; s < partials; ++s) {
      total = rounded<T>(total + partial[s]);
    }
    store_n(
        y + i,
        mul_add<T>(splat(shared_weight), load_n(shared + i, count), total),
        count);
  });
}

/** The (row, slot) pairs of a block of rows, sorted by expert. */
struct Sorted {
  Group* groups;
  int* slots;
  const float** x;
  int n_groups = 0;
};

Sorted sort_by_expert(
    const int32_t* ids,
    int n,
    int top_k,
    int n_experts,
    Scratch& scratch) {
  Sorted sorted;
  auto* begin = static_cast<int*>(scratch.bytes((n_experts + 1) * sizeof(int)));
  sorted.groups =
      static_cast<Group*>(scratch.bytes((n_experts + 1) * sizeof(Group)));
  sorted.slots = static_cast<int*>(scratch.bytes(n * top_k * sizeof(int)));
  sorted.x =
      static_cast<const float**>(scratch.bytes(n * top_k * sizeof(float*)));
  for (int e = 0; e <= n_experts; ++e) {
    begin[e] = 0;
  }
  for (int i = 0; i < n * top_k; ++i) {
    ++begin[ids[i] + 1];
  }
  for (int e = 0; e < n_experts; ++e) {
    begin[e + 1] += begin[e];
    const int count = begin[e + 1] - begin[e];
    if (count > 0) {
      sorted.groups[sorted.n_groups++] =
          {nullptr, e, sorted.x + begin[e], sorted.slots + begin[e], count};
    }
  }
  for (int i = 0; i < n * top_k; ++i) {
    sorted.slots[begin[ids[i]]++] = i;
  }
  return sorted;
}

template <typename T>
void moe_rows(const MoeCall& c, int first, int n) {
  const int hidden = c.gate.in;
  const int inter = c.gate.out;
  const int shared = c.first[1].out;
  const int n_experts = c.first[0].out;
  Scratch scratch;
  float* logits = scratch.floats(int64_t{n} * n_experts);
  float* shared_gate = scratch.floats(int64_t{n} * shared);
  float* shared_up = scratch.floats(int64_t{n} * shared);
  float* shared_weight = scratch.floats(n);
  float* weights = scratch.floats(int64_t{n} * c.top_k);
  float* to[4] = {logits, shared_gate, shared_up, shared_weight};
  const Rows u = {
      static_cast<const T*>(c.u.data) + first * c.u.stride,
      c.u.stride};
  const auto* x = float_rows<T>(u, n, hidden, scratch);
  all_products(
      x,
      n,
      c.first,
      4,
      [&](int m, int r, int begin, int end, const float* values) {
        for_lanes(end - begin, [&](int i, int count) {
          store_n(
              to[m] + int64_t{r} * c.first[m].out + begin + i,
              rounded<T>(load_n(values + i, count)),
              count);
        });
      });

  int32_t* ids = c.ids + int64_t{first} * c.top_k;
  const int row_parts = parts_for(int64_t{16} * n * (n_experts + shared), n);
  parallel_for(row_parts, [&](int part) {
    Scratch mine;
    float* p = mine.floats(n_experts);
    for (int r = part_begin(n, row_parts, part);
         r < part_begin(n, row_parts, part + 1);
         ++r) {
      float* w = weights + int64_t{r} * c.top_k;
      route<T>(
          logits + int64_t{r} * n_experts,
          n_experts,
          c.top_k,
          ids + int64_t{r} * c.top_k,
          w,
          p);
      narrow(
          w,
          static_cast<T*>(c.weights.data) + (first + r) * c.weights.stride,
          c.top_k);
      float* gate = shared_gate + int64_t{r} * shared;
      swiglu<T>(gate, shared_up + int64_t{r} * shared, gate, shared);
      shared_weight[r] = rounded<T>(sigmoid(shared_weight[r]));
    }
  });

  Sorted sorted = sort_by_expert(ids, n, c.top_k, n_experts, scratch);
  const int pairs = n * c.top_k;
  float* act = scratch.floats(int64_t{pairs} * inter);
  for (int i = 0; i < pairs; ++i) {
    sorted.x[i] = x[sorted.slots[i] / c.top_k];
  }
  for (int g = 0; g < sorted.n_groups; ++g) {
    sorted.groups[g].w = &c.gate;
  }
  grouped_products(
      sorted.groups,
      sorted.n_groups,
      [&](int g, int begin, int end, float* gate, int64_t ld) {
        const Group& group = sorted.groups[g];
        Scratch mine;
        float* up = mine.floats(group.n * ld);
        products(group.x, group.n, c.up, group.expert, begin, end, up, ld);
        for (int i = 0; i < group.n; ++i) {
          swiglu<T>(
              gate + i * ld,
              up + i * ld,
              act + int64_t{group.slots[i]} * inter + begin,
              end - begin);
        }
      });

  // One more group than experts: the shared expert's rows follow the slots.
  float* out = scratch.floats((int64_t{pairs} + n) * hidden);
  auto* shared_slots = static_cast<int*>(scratch.bytes(n * sizeof(int)));
  for (int i = 0; i < pairs; ++i) {
    sorted.x[i] = act + int64_t{sorted.slots[i]} * inter;
  }
  for (int g = 0; g < sorted.n_groups; ++g) {
    sorted.groups[g].w = &c.down;
  }
  for (int r = 0; r < n; ++r) {
    shared_slots[r] = pairs + r;
  }
  sorted.groups[sorted.n_groups++] = {
      &c.shared_down,
      0,
      row_pointers(shared_gate, n, shared, scratch),
      shared_slots,
      n};
  grouped_products(
      sorted.groups,
      sorted.n_groups,
      [&](int g, int begin, int end, float* values, int64_t ld) {
        const Group& group = sorted.groups[g];
        for (int i = 0; i < group.n; ++i) {
          float* row = out + int64_t{group.slots[i]} * hidden + begin;
          for_lanes(end - begin, [&](int j, int count) {
            store_n(
                row + j,
                rounded<T>(load_n(values + i * ld + j, count)),
                count);
          });
        }
      });
  const int sum_parts = parts_for(int64_t{pairs} * hidden, n);
  parallel_for(sum_parts, [&](int part) {
    for (int r = part_begin(n, sum_parts, part);
         r < part_begin(n, sum_parts, part + 1);
         ++r) {
      combine(
          out + int64_t{r} * c.top_k * hidden,
          weights + int64_t{r} * c.top_k,
          c.top_k,
          out + (int64_t{pairs} + r) * hidden,
          shared_weight[r],
          hidden,
          static_cast<T*>(c.y.data) + (first + r) * c.y.stride);
    }
  });
}

} // namespace

void moe(const MoeCall& call) {
  constexpr int kBlock = 512; // bounds the scratch of a long launch
  with_activation(call.type, [&](auto* t) {
    for (int first = 0; first < call.n_rows; first += kBlock) {
      int n = call.n_rows - first < kBlock ? call.n_rows - first : kBlock;
      moe_rows<std::remove_pointer_t<decltype(t)>>(call, first, n);
    }
  });
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
