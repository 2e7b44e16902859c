// The router's choice and the sum of the chosen experts.

// moe_route -- the K experts of each row by (probability, id), their weights,
// and all (row, rank) pairs sorted by expert.
//   arrays    logits [rows, E], weight [rows, K] in T; expert [rows, K], order [rows*K]; rows <= 8
//   grid      (32, 8, 1), one threadgroup: a simdgroup a row, E/32 values a lane
//   memory    logits once; 320 B of shared memory at K = 10
//   numerics  softmax in float; p, the running sum of the kept p and p / sum round
//   law       model.md 9: ascending (p, id), the last K in that order
//@kernel   moe_route
//@template T:type E:int K:int
//@in       logits T rows, E
//@in       n_rows int32 1
//@out      expert int32 rows, K
//@out      weight T rows, K
//@out      order int32 rows*K
//@shared   int chosen[8 * K]
//@grid     32, 8, 1
//@group    32, 8, 1
//@call     moe_route<T, E, K>(logits, n_rows[0], expert, weight, order, chosen,
//@call         thread_index_in_threadgroup, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <typename T, int E, int K>
METAL_FUNC void moe_route(
    const device T* logits,
    int n_rows,
    device int* expert,
    device T* weight,
    device int* order,
    threadgroup int* chosen,
    int i_thread,
    int i_row,
    int lane) {
  constexpr int n = (E + 31) / 32;
  if (i_row < n_rows) {
    float p[n];
    float most = -INFINITY;
    for (int j = 0; j < n; ++j) {
      const int e = lane + 32 * j;
      p[j] = e < E ? static_cast<float>(logits[i_row * E + e]) : -INFINITY;
      most = metal::max(most, p[j]);
    }
    most = simd_max(most);
    float sum = 0.0f;
    for (int j = 0; j < n; ++j) {
      p[j] = metal::exp(p[j] - most);
      sum += p[j];
    }
    const float inverse = 1.0f / simd_sum(sum);
    for (int j = 0; j < n; ++j) {
      p[j] = lane + 32 * j < E ? rounded<T>(p[j] * inverse) : -1.0f;
    }
    // From the largest down: rank K-1 first, so that the order is ascending.
    float kept[K];
    for (int rank = K - 1; rank >= 0; --rank) {
      float best = -1.0f;
      for (int j = 0; j < n; ++j) {
        best = metal::max(best, p[j]);
      }
      best = simd_max(best);
      int id = -1;
      for (int j = 0; j < n; ++j) {
        id = p[j] == best ? lane + 32 * j : id;
      }
      id = simd_max(id);
      for (int j = 0; j < n; ++j) {
        p[j] = lane + 32 * j == id ? -1.0f : p[j];
      }
      kept[rank] = best;
      if (lane == 0) {
        expert[i_row * K + rank] = id;
        chosen[i_row * K + rank] = id;
      }
    }
    float total = 0.0f;
    for (int rank = 0; rank < K; ++rank) {
      total = rounded<T>(total + kept[rank]);
    }
    if (lane == 0) {
      for (int rank = 0; rank < K; ++rank) {
        weight[i_row * K + rank] = static_cast<T>(kept[rank] / total);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i_pair = i_thread; i_pair < n_rows * K; i_pair += 256) {
    const int id = chosen[i_pair];
    int at = 0;
    for (int i = 0; i < n_rows * K; ++i) {
      at += chosen[i] < id || (chosen[i] == id && i < i_pair) ? 1 : 0;
    }
    order[at] = i_pair;
  }
}

// moe_combine -- sum of a row's weighted experts plus the gated shared expert.
//   arrays    y [rows*K, H] weighted, shared [rows, H], gate [rows, 1] before the sigmoid, out [rows, H] in T
//   grid      (H, rows, 1), threadgroup (256, 1, 1)
//   memory    K + 2 values a column: 62 KB a row at 10 x 2560
//   numerics  eight partial sums, rank r into r mod 8, then in order; every sum and product rounds
//   law       model.md 9
//@kernel   moe_combine
//@template T:type H:int K:int
//@in       shared T rows, H
//@in       y T rows*K, H
//@in       gate T rows, 1
//@out      out T rows, H
//@grid     H, rows, 1
//@group    256, 1, 1
//@call     moe_combine<T, H, K>(shared, y, gate, out, thread_position_in_grid.x, thread_position_in_grid.y);
template <typename T, int H, int K, typename G>
METAL_FUNC void moe_combine(
    const device T* shared,
    const device T* y,
    G gate,
    device T* out,
    int i,
    int i_row) {
  if (i >= H) {
    return;
  }
  float sum = 0.0f;
  for (int first = 0; first < 8 && first < K; ++first) {
    float partial = 0.0f;
    for (int rank = first; rank < K; rank += 8) {
      partial = rounded<T>(partial + static_cast<float>(y[(i_row * K + rank) * H + i]));
    }
    sum = rounded<T>(sum + partial);
  }
  const float open = rounded<T>(sigmoid_f(static_cast<float>(gate[i_row])));
  const float term = rounded<T>(separate_product(open, static_cast<float>(shared[i_row * H + i])));
  out[i_row * H + i] = static_cast<T>(sum + term);
}
