// Qwen Sparse Attention between its projections: head norms and rotation,
// pooled index keys, block scores, block choice, attention over the chosen.
//
// Rows stand at positions position .. position + rows - 1; a query at p sees
// n = (p + 1) / RATIO complete blocks, of which the K best, and the rows of the
// incomplete block. With n <= K it sees everything and `chosen` is not read.
// Caches are whole buffers of `cap` rows; rows past the last are never used.
//
// The file is over 400 lines: index, choice and attention share the visible set.

// Value i of a head: RMS norm, weight, rotation by half-split pairs.
template <typename T, int RD>
METAL_FUNC float qsa_rotated(float own, float partner, int i, const device float* cosine, const device float* sine) {
  constexpr int half_dim = RD / 2;
  if (i >= RD) {
    return own;
  }
  const float c = cosine[i % half_dim];
  const float s = sine[i % half_dim];
  return metal::fma(i < half_dim ? -partner : partner, s, separate_product(own, c));
}

// Norms and rotates x [DIM], a simdgroup at work; one rounding a step.
template <typename T, int DIM, int RD, typename X>
METAL_FUNC void qsa_head(
    X x,
    const device T* w,
    const device float* cosine,
    const device float* sine,
    float eps,
    device T* out,
    int lane) {
  float square = 0.0f;
  for (int i = lane; i < DIM; i += 32) {
    const float b_x = static_cast<float>(x[i]);
    square = metal::fma(b_x, b_x, square);
  }
  const float inverse = metal::rsqrt(simd_sum(square) / static_cast<float>(DIM) + eps);
  for (int i = lane; i < DIM; i += 32) {
    const int j = i >= RD ? i : i < RD / 2 ? i + RD / 2 : i - RD / 2;
    const float own = rounded<T>(rounded<T>(static_cast<float>(x[i]) * inverse) * static_cast<float>(w[i]));
    const float partner = rounded<T>(rounded<T>(static_cast<float>(x[j]) * inverse) * static_cast<float>(w[j]));
    out[i] = static_cast<T>(qsa_rotated<T, RD>(own, partner, i, cosine, sine));
  }
}

template <typename T, int DIM>
METAL_FUNC void qsa_copy(const device T* x, device T* out, int lane) {
  for (int i = lane; i < DIM; i += 32) {
    out[i] = x[i];
  }
}

// qsa_heads -- everything a row appends or asks with.
//   arrays    proj [rows, (2*HKV + 2*HQ)*D]: keys, values, then a head's query and its gate; index [rows, (NI+1)*DI];
//             cosine sine [rows, RD/2]; q [rows,HQ*D], k_out v_out [HKV,rows,D], iq [rows,NI*DI], raw [rows,DI]
//   grid      (32, HQ+2*HKV+NI+1, rows), threadgroup (32, 4, 1): one simdgroup a head
//   memory    each array once: 34 KB a row at the released size
//   numerics  norm and weight round; rotation in float, one rounding
//   law       model.md 5, 8.1, 8.2
//@kernel   qsa_heads
//@template T:type HQ:int HKV:int D:int NI:int DI:int RD:int
//@in       proj T rows, (2*HKV+2*HQ)*D
//@in       index T rows, (NI+1)*DI
//@in       q_norm T D
//@in       k_norm T D
//@in       iq_norm T DI
//@in       cosine float32 rows, RD/2
//@in       sine float32 rows, RD/2
//@in       eps float32 1
//@in       n_rows int32 1
//@out      q T rows, HQ*D
//@out      k_out T HKV, rows, D
//@out      v_out T HKV, rows, D
//@out      iq T rows, NI*DI
//@out      raw T rows, DI
//@grid     32, HQ+2*HKV+NI+1, rows
//@group    32, 4, 1
//@call     qsa_heads<T, HQ, HKV, D, NI, DI, RD>(proj, index, q_norm, k_norm, iq_norm, cosine, sine,
//@call         eps[0], n_rows[0], q, k_out, v_out, iq, raw, thread_position_in_grid.y,
//@call         thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, int HQ, int HKV, int D, int NI, int DI, int RD>
METAL_FUNC void qsa_heads(
    const device T* proj,
    const device T* index,
    const device T* q_norm,
    const device T* k_norm,
    const device T* iq_norm,
    const device float* cosine,
    const device float* sine,
    float eps,
    int n_rows,
    device T* q,
    device T* k_out,
    device T* v_out,
    device T* iq,
    device T* raw,
    int i_head,
    int i_row,
    int lane) {
  const device float* c = cosine + i_row * (RD / 2);
  const device float* s = sine + i_row * (RD / 2);
  const device T* k = proj + i_row * (2 * HKV + 2 * HQ) * D;
  const device T* v = k + HKV * D;
  const device T* row = index + i_row * (NI + 1) * DI;
  int h = i_head;
  if (h < HQ) {
    qsa_head<T, D, RD>(v + (HKV + 2 * h) * D, q_norm, c, s, eps, q + (i_row * HQ + h) * D, lane);
    return;
  }
  h -= HQ;
  if (h < HKV) {
    qsa_head<T, D, RD>(k + h * D, k_norm, c, s, eps, k_out + (h * n_rows + i_row) * D, lane);
    return;
  }
  h -= HKV;
  if (h < HKV) {
    qsa_copy<T, D>(v + h * D, v_out + (h * n_rows + i_row) * D, lane);
    return;
  }
  h -= HKV;
  if (h < NI) {
    qsa_head<T, DI, RD>(row + h * DI, iq_norm, c, s, eps, iq + (i_row * NI + h) * DI, lane);
  } else if (h == NI) {
    qsa_copy<T, DI>(row + NI * DI, raw + i_row * DI, lane);
  }
}

// qsa_keys -- what a row appends, for rows that ask nothing.
//   arrays    kv [rows, 2*HKV*D]: keys, values; the rest as qsa_heads
//   grid      (32, 2*HKV+1, rows), threadgroup (32, 4, 1)
//   memory    each array once
//   numerics  as qsa_heads
//   law       model.md 11
//@kernel   qsa_keys
//@template T:type HKV:int D:int NI:int DI:int RD:int
//@in       kv T rows, 2*HKV*D
//@in       index T rows, (NI+1)*DI
//@in       k_norm T D
//@in       cosine float32 rows, RD/2
//@in       sine float32 rows, RD/2
//@in       eps float32 1
//@in       n_rows int32 1
//@out      k_out T HKV, rows, D
//@out      v_out T HKV, rows, D
//@out      raw T rows, DI
//@grid     32, 2*HKV+1, rows
//@group    32, 4, 1
//@call     qsa_keys<T, HKV, D, NI, DI, RD>(kv, index, k_norm, cosine, sine, eps[0], n_rows[0], k_out, v_out,
//@call         raw, thread_position_in_grid.y, thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, int HKV, int D, int NI, int DI, int RD>
METAL_FUNC void qsa_keys(
    const device T* kv,
    const device T* index,
    const device T* k_norm,
    const device float* cosine,
    const device float* sine,
    float eps,
    int n_rows,
    device T* k_out,
    device T* v_out,
    device T* raw,
    int i_head,
    int i_row,
    int lane) {
  const device T* k = kv + i_row * 2 * HKV * D;
  if (i_head < HKV) {
    qsa_head<T, D, RD>(k + i_head * D, k_norm, cosine + i_row * (RD / 2), sine + i_row * (RD / 2), eps,
                       k_out + (i_head * n_rows + i_row) * D, lane);
  } else if (i_head < 2 * HKV) {
    qsa_copy<T, D>(k + i_head * D, v_out + ((i_head - HKV) * n_rows + i_row) * D, lane);
  } else if (i_head == 2 * HKV) {
    qsa_copy<T, DI>(index + (i_row * (NI + 1) + NI) * DI, raw + i_row * DI, lane);
  }
}

// qsa_pool -- keys of blocks that became complete.
//   arrays    tail [any, DI], raw [rows, DI]: the blocks' un-normalised keys are the first n_tail rows of tail,
//             then those of raw; cosine sine [blocks, RD/2] of each block's first position; pooled [blocks, DI]
//   grid      (32, blocks, 1), threadgroup (32, 4, 1): one simdgroup a block
//   memory    RATIO + 1 rows a block; a block of shared memory a simdgroup
//   numerics  mean in float, then norm, weight, rotation: each rounds
//   law       model.md 8.2
//@kernel   qsa_pool
//@template T:type DI:int RD:int RATIO:int
//@in       cosine float32 blocks, RD/2
//@in       sine float32 blocks, RD/2
//@in       tail T open, DI
//@in       raw T rows, DI
//@in       norm T DI
//@in       eps float32 1
//@in       n_tail int32 1
//@in       n_blocks int32 1
//@out      pooled T blocks, DI
//@shared   float mean[4 * DI]
//@grid     32, blocks, 1
//@group    32, 4, 1
//@call     qsa_pool<T, DI, RD, RATIO>(tail, raw, norm, cosine, sine, eps[0], n_tail[0], n_blocks[0], pooled,
//@call         mean, thread_position_in_grid.y, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <typename T, int DI, int RD, int RATIO>
METAL_FUNC void qsa_pool(
    const device T* tail,
    const device T* raw,
    const device T* norm,
    const device float* cosine,
    const device float* sine,
    float eps,
    int n_tail,
    int n_blocks,
    device T* pooled,
    threadgroup float* mean,
    int i_block,
    int i_simd,
    int lane) {
  if (i_block >= n_blocks) {
    return;
  }
  threadgroup float* m = mean + i_simd * DI;
  for (int i = lane; i < DI; i += 32) {
    float sum = 0.0f;
    for (int r = i_block * RATIO; r < (i_block + 1) * RATIO; ++r) {
      const device T* row = r < n_tail ? tail + r * DI : raw + (r - n_tail) * DI;
      sum += static_cast<float>(row[i]);
    }
    m[i] = rounded<T>(sum / static_cast<float>(RATIO));
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  qsa_head<T, DI, RD>(
      m, norm, cosine + i_block * (RD / 2), sine + i_block * (RD / 2), eps, pooled + i_block * DI, lane);
}

// qsa_scores -- rank of each block for each row; -inf past the complete ones.
//   arrays    iq [rows, NI*DI], pooled [blocks, DI] in T; rank [rows, blocks] float
//   grid      (32, blocks*DI/16/32, 1), threadgroup (32, 4, 1): DI/16 lanes a block
//   memory    pooled once for all rows: 256 B a block; 8.4 MB at 131,072 tokens
//   numerics  float, fma, heads in order; the tie term is a rounded product, subtracted in float
//   law       model.md 8.3, 8.4
//@kernel   qsa_scores
//@template T:type NI:int DI:int RATIO:int
//@in       iq T rows, NI*DI
//@in       pooled T blocks, DI
//@in       position int32 1
//@in       divisor float32 1
//@in       n_rows int32 1
//@in       n_blocks int32 1
//@out      rank float32 rows, blocks
//@grid     32, blocks/(512/DI), 1
//@group    32, 4, 1
//@call     qsa_scores<T, NI, DI, RATIO>(iq, pooled, position[0], divisor[0], n_rows[0], n_blocks[0], rank,
//@call         thread_position_in_grid.y, thread_index_in_simdgroup);
template <typename T, int NI, int DI, int RATIO>
METAL_FUNC void qsa_scores(
    const device T* iq,
    const device T* pooled,
    int position,
    float divisor,
    int n_rows,
    int n_blocks,
    device float* rank,
    int i_simd,
    int lane) {
  constexpr int lanes = DI / 16;
  static_assert(DI == 64 || DI == 128 || DI == 256, "a power of two of lanes shares a block");
  const int i_block = i_simd * (32 / lanes) + lane / lanes;
  const int at = (lane % lanes) * 16;
  float key[2][8];
  for (int j = 0; j < 2; ++j) {
    load8(pooled + metal::min(i_block, n_blocks - 1) * DI + at + 8 * j, key[j]);
  }
  for (int r = 0; r < n_rows; ++r) {
    float score = 0.0f;
    for (int h = 0; h < NI; ++h) {
      float dot = 0.0f;
      for (int j = 0; j < 2; ++j) {
        float query[8];
        load8(iq + (r * NI + h) * DI + at + 8 * j, query);
        for (int i = 0; i < 8; ++i) {
          dot = metal::fma(query[i], key[j][i], dot);
        }
      }
      for (int mask = 1; mask < lanes; mask <<= 1) {
        dot += simd_shuffle_xor(dot, static_cast<ushort>(mask));
      }
      score += metal::max(dot, 0.0f);
    }
    if (lane % lanes == 0 && i_block < n_blocks) {
      const float tie = separate_product(static_cast<float>(i_block), 1e-12f);
      const bool complete = i_block < (position + r + 1) / RATIO;
      rank[r * n_blocks + i_block] = complete ? score / divisor - tie : -INFINITY;
    }
  }
}

template <typename R>
struct QsaRanks {
  R rank;
  METAL_FUNC uint at(int i) const {
    return select_key(rank[i]);
  }
};
struct QsaBlocks {
  device int* chosen;
  METAL_FUNC void put(int slot, int i) const {
    chosen[slot] = i;
  }
};

// qsa_top_blocks -- the K best blocks of each row, ids ascending; -1 where there are fewer.
//   arrays    rank [rows, blocks] float, chosen [rows, K]
//   grid      (1024, rows, 1), threadgroup (1024, 1, 1): one threadgroup a row
//   memory    rank five times, from cache after the first; 1.2 KB of shared memory
//   numerics  exact; among equal ranks the larger id
//   law       model.md 8.4
//@kernel   qsa_top_blocks
//@template K:int RATIO:int
//@in       rank float32 rows, blocks
//@in       position int32 1
//@in       n_blocks int32 1
//@out      chosen int32 rows, K
//@shared   atomic_uint hist[256]
//@shared   uint part[35]
//@grid     1024, rows, 1
//@group    1024, 1, 1
//@call     qsa_top_blocks<K, RATIO>(rank, position[0], n_blocks[0], chosen, hist, part,
//@call         threadgroup_position_in_grid.y, thread_index_in_threadgroup,
//@call         simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <int K, int RATIO, typename R>
METAL_FUNC void qsa_top_blocks(
    R rank,
    int position,
    int n_blocks,
    device int* chosen,
    threadgroup atomic_uint* hist,
    threadgroup uint* part,
    int i_row,
    int i_thread,
    int i_simd,
    int lane) {
  const int n = metal::min((position + i_row + 1) / RATIO, n_blocks);
  const int want = metal::min(n, K);
  for (int i = want + i_thread; i < K; i += 1024) {
    chosen[i_row * K + i] = -1;
  }
  if (want > 0) {
    const QsaRanks<R> keys = {rank + i_row * n_blocks};
    const QsaBlocks sink = {chosen + i_row * K};
    Selection s;
    select_threshold<1024>(keys, n, want, hist, part, i_thread, i_simd, lane, s);
    select_chosen<1024, true>(keys, n, s, sink, part, i_thread, i_simd, lane);
  }
}

// What one query row sees: token j of n_visible, in ascending order.
template <int K, int RATIO, typename I>
struct QsaVisible {
  I chosen;
  int n_blocks;
  int n_visible;

  METAL_FUNC int token(int j) const {
    if (n_blocks <= K) {
      return j;
    }
    return j < K * RATIO ? chosen[j / RATIO] * RATIO + j % RATIO : n_blocks * RATIO + j - K * RATIO;
  }
};

// Softmax state over some tokens: running maximum, sum, and PER values of the output a lane.
template <int PER>
struct QsaSum {
  float most;
  float total;
  float acc[PER];
};

// Tokens begin .. end - 1 of the visible ones, one simdgroup for one query head;
// eight of them are loaded before the first is used.
template <typename T, int D, int PER, typename V>
METAL_FUNC void qsa_attend_tokens(
    const device T* q,
    const device T* k,
    const device T* v,
    thread const V& visible,
    int begin,
    int end,
    int lane,
    thread QsaSum<PER>& s) {
  static_assert(D % 256 == 0 && PER == D / 32, "a lane loads eight values at a time");
  constexpr int at_once = 8;
  const float scale = 1.0f / metal::sqrt(static_cast<float>(D));
  float query[PER];
  for (int i = 0; i < PER; i += 4) {
    load4(q + lane * PER + i, query + i);
  }
  for (int i = 0; i < PER; ++i) {
    query[i] *= scale;
  }
  s.most = -INFINITY;
  s.total = 0.0f;
  for (int i = 0; i < PER; ++i) {
    s.acc[i] = 0.0f;
  }
  for (int t = begin; t < end; t += at_once) {
    long at[at_once];
    for (int j = 0; j < at_once; ++j) {
      at[j] = static_cast<long>(visible.token(metal::min(t + j, end - 1))) * D + lane * PER;
    }
    float key[at_once][PER];
    float value[at_once][PER];
    for (int j = 0; j < at_once; ++j) {
      for (int i = 0; i < PER; i += 4) {
        load4(k + at[j] + i, key[j] + i);
      }
    }
    for (int j = 0; j < at_once; ++j) {
      for (int i = 0; i < PER; i += 4) {
        load4(v + at[j] + i, value[j] + i);
      }
    }
    float dot[at_once];
    float most = s.most;
    for (int j = 0; j < at_once; ++j) {
      dot[j] = 0.0f;
      for (int i = 0; i < PER; ++i) {
        dot[j] = metal::fma(query[i], key[j][i], dot[j]);
      }
    }
    for (int j = 0; j < at_once; ++j) {
      dot[j] = simd_sum(dot[j]);
      dot[j] = t + j < end ? dot[j] : -INFINITY;
      most = metal::max(most, dot[j]);
    }
    const float fade = metal::exp(s.most - most);
    s.most = most;
    s.total *= fade;
    for (int i = 0; i < PER; ++i) {
      s.acc[i] *= fade;
    }
    for (int j = 0; j < at_once; ++j) {
      const float p = metal::exp(dot[j] - most);
      s.total += p;
      for (int i = 0; i < PER; ++i) {
        s.acc[i] = metal::fma(p, value[j][i], s.acc[i]);
      }
    }
  }
}

// qsa_attend -- attention of each row over 32 visible tokens at a time.
//   arrays    q [rows,HQ*D], k v [HKV,cap,D] in T, chosen [rows,K]; acc [rows,HQ,SPLITS,D],
//             stat [rows,HQ,SPLITS,2] (maximum, sum) in float; SPLITS = (K*RATIO + RATIO - 1)/32, rounded up
//   grid      (32, HQ/HKV, rows*HKV*SPLITS), threadgroup (32, HQ/HKV, 1): the heads of a KV head share its rows
//   memory    the visible keys and values: 2.1 MB each a row and layer at most; acc 1.6 MB
//   numerics  float, online softmax, tokens ascending
//   law       model.md 8.1, 8.3
//@kernel   qsa_attend
//@template T:type HQ:int HKV:int D:int K:int RATIO:int SPLITS:int
//@in       q T rows, HQ*D
//@in       k T HKV, cap, D
//@in       v T HKV, cap, D
//@in       chosen int32 rows, K
//@in       position int32 1
//@in       capacity int32 1
//@out      acc float32 rows, HQ, SPLITS, D
//@out      stat float32 rows, HQ, SPLITS, 2
//@grid     32, HQ/HKV, rows*HKV*SPLITS
//@group    32, HQ/HKV, 1
//@call     qsa_attend<T, HQ, HKV, D, K, RATIO, SPLITS>(q, k, v, chosen, position[0], capacity[0], acc, stat,
//@call         thread_position_in_grid.z, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <typename T, int HQ, int HKV, int D, int K, int RATIO, int SPLITS, typename I>
METAL_FUNC void qsa_attend(
    const device T* q,
    const device T* k,
    const device T* v,
    I chosen,
    int position,
    int capacity,
    device float* acc,
    device float* stat,
    int i_part,
    int i_group,
    int lane) {
  constexpr int per = D / 32;
  const int i_split = i_part % SPLITS;
  const int i_kv = i_part / SPLITS % HKV;
  const int i_row = i_part / SPLITS / HKV;
  const int head = i_row * HQ + i_kv * (HQ / HKV) + i_group;
  const int n_blocks = (position + i_row + 1) / RATIO;
  const int tail = position + i_row + 1 - n_blocks * RATIO;
  const QsaVisible<K, RATIO, I> visible = {
      chosen + i_row * K, n_blocks, metal::min(n_blocks, K) * RATIO + tail};
  const long rows = static_cast<long>(i_kv) * capacity * D;
  QsaSum<per> s;
  qsa_attend_tokens<T, D, per>(
      q + head * D, k + rows, v + rows, visible, 32 * i_split,
      metal::min(32 * (i_split + 1), visible.n_visible), lane, s);
  const int at = head * SPLITS + i_split;
  for (int i = 0; i < per; ++i) {
    acc[at * D + lane * per + i] = s.acc[i];
  }
  if (lane == 0) {
    stat[2 * at] = s.most;
    stat[2 * at + 1] = s.total;
  }
}

// qsa_combine -- joins the parts of qsa_attend, in order, and applies the output gate.
//   arrays    acc stat as above, proj as in qsa_heads, out [rows, HQ*D] in T
//   grid      (32, HQ, rows), threadgroup (32, 4, 1): one simdgroup a head
//   memory    acc once: 1.6 MB a row at 65 parts
//   numerics  float; the head's output rounds, the sigmoid, the product
//   law       model.md 8.1
//@kernel   qsa_combine
//@template T:type HQ:int HKV:int D:int SPLITS:int
//@in       acc float32 rows, HQ, SPLITS, D
//@in       stat float32 rows, HQ, SPLITS, 2
//@in       proj T rows, (2*HKV+2*HQ)*D
//@out      out T rows, HQ*D
//@grid     32, HQ, rows
//@group    32, 4, 1
//@call     qsa_combine<T, HQ, HKV, D, SPLITS>(acc, stat, proj, out, thread_position_in_grid.y,
//@call         thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, int HQ, int HKV, int D, int SPLITS>
METAL_FUNC void qsa_combine(
    const device float* acc,
    const device float* stat,
    const device T* proj,
    device T* out,
    int i_head,
    int i_row,
    int lane) {
  constexpr int per = D / 32;
  constexpr int turns = (SPLITS + 31) / 32;
  if (i_head >= HQ) {
    return;
  }
  // Lane l weighs parts l, l + 32, ...; a part without tokens weighs nothing, the first has some.
  const int head = i_row * HQ + i_head;
  float weight[turns];
  float most = -INFINITY;
  for (int i = 0; i < turns; ++i) {
    const int part = lane + 32 * i;
    weight[i] = part < SPLITS ? stat[2 * (head * SPLITS + part)] : -INFINITY;
    most = metal::max(most, weight[i]);
  }
  most = simd_max(most);
  float total = 0.0f;
  for (int i = 0; i < turns; ++i) {
    const int part = lane + 32 * i;
    weight[i] = metal::exp(weight[i] - most);
    if (part < SPLITS) {
      total = metal::fma(stat[2 * (head * SPLITS + part) + 1], weight[i], total);
    }
  }
  total = simd_sum(total);
  float sum[per];
  for (int i = 0; i < per; ++i) {
    sum[i] = 0.0f;
  }
  for (int turn = 0; turn < turns; ++turn) {
    for (int l = 0; l < 32 && 32 * turn + l < SPLITS; ++l) {
      const float w = simd_shuffle(weight[turn], static_cast<ushort>(l));
      float value[per];
      for (int i = 0; i < per; i += 4) {
        load4(acc + (head * SPLITS + 32 * turn + l) * D + lane * per + i, value + i);
      }
      for (int i = 0; i < per; ++i) {
        sum[i] = metal::fma(w, value[i], sum[i]);
      }
    }
  }
  const device T* gate = proj + (i_row * (2 * HKV + 2 * HQ) + 2 * HKV + 2 * i_head + 1) * D;
  for (int i = 0; i < per; ++i) {
    const int at = lane * per + i;
    const float open = rounded<T>(sigmoid_f(static_cast<float>(gate[at])));
    out[head * D + at] = static_cast<T>(rounded<T>(sum[i] / total) * open);
  }
}
