// Candidates of a logits row, so that the host reads a few hundred values
// instead of the vocabulary. s = float(logit) * inverse temperature.
//
// A chunk of CHUNK values hands its M largest on; the M largest of those are
// the row's. Among equal values the lower id is chosen, in both steps.
//
// The sum of exponentials has the bits of csrc/base/exp_sum.h on every backend,
// or the nucleus of a row would depend on who read it: blocks of 512, each
// relative to its maximum, then the blocks; 32 lanes folded in halves; every
// product and sum rounds by itself.

// exp for x <= 0; 1.6e-38 for anything below -87; a NaN stays one.
METAL_FUNC float sample_exp(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float v = x < -87.0f ? -87.0f : x;
  const float n = (separate_product(v, 1.44269504f) + magic) - magic;
  const float r = (v - separate_product(n, 0.693359375f)) + separate_product(n, 2.12194440e-4f);
  float p = separate_product(r, 1.9875691500e-4f) + 1.3981999507e-3f;
  p = separate_product(p, r) + 8.3334519073e-3f;
  p = separate_product(p, r) + 4.1665795894e-2f;
  p = separate_product(p, r) + 1.6666665459e-1f;
  p = separate_product(p, r) + 5.0000001201e-1f;
  p = (separate_product(p, separate_product(r, r)) + r) + 1.0f;
  const uint exponent = static_cast<uint>(static_cast<int>(n) + 127) << 23;
  return separate_product(p, as_type<float>(exponent));
}

// Lanes l and l + 16, then l + 8, ...; the result is lane 0's.
METAL_FUNC float sample_fold(float v) {
  for (ushort step = 16; step > 0; step /= 2) {
    v += simd_shuffle_xor(v, step);
  }
  return v;
}

struct SampleStaged {
  const threadgroup float* s;
  METAL_FUNC uint at(int i) const {
    return select_key(s[i]);
  }
};
struct SampleFromChunk {
  const threadgroup float* s;
  int first;
  device float* value;
  device int* id;
  METAL_FUNC void put(int slot, int i) const {
    value[slot] = s[i];
    id[slot] = first + i;
  }
};

// sample_chunks -- the M largest values of each chunk, and its parts of the normaliser.
//   arrays    logits [rows, V] in T; value, id [rows, CHUNKS, M], ids ascending, -inf and -1 where
//             a chunk is shorter than M; cut [rows, CHUNKS]: smallest chosen; unchosen [rows, CHUNKS]:
//             values equal to that and left out; block [rows, BLOCKS, 2]: maximum, sum of exp(s - maximum)
//   grid      (256, CHUNKS, rows), threadgroup (256, 1, 1); a simdgroup a block. CHUNK % 512 == 0
//   memory    logits once: 0.5 MB at 248,320; 16 KB of shared memory at CHUNK 4096
//   numerics  s is one float product; the sum as above, NaN where the row has NaN or +inf
//   law       decode.md 1.4
//@kernel   sample_chunks
//@template T:type V:int M:int CHUNK:int
//@in       logits T rows, V
//@in       scale float32 1
//@out      value float32 rows, V/CHUNK, M
//@out      id int32 rows, V/CHUNK, M
//@out      cut float32 rows, V/CHUNK
//@out      unchosen int32 rows, V/CHUNK
//@out      block float32 rows, V/512, 2
//@shared   float s[CHUNK]
//@shared   atomic_uint hist[256]
//@shared   uint part[11]
//@grid     256, V/CHUNK, rows
//@group    256, 1, 1
//@call     sample_chunks<T, V, M, CHUNK>(logits, scale[0], value, id, cut, unchosen, block, s, hist, part,
//@call         threadgroup_position_in_grid.y, threadgroup_position_in_grid.z, thread_index_in_threadgroup,
//@call         simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <typename T, int V, int M, int CHUNK>
METAL_FUNC void sample_chunks(
    const device T* logits,
    float scale,
    device float* value,
    device int* id,
    device float* cut,
    device int* unchosen,
    device float* block,
    threadgroup float* s,
    threadgroup atomic_uint* hist,
    threadgroup uint* part,
    int i_chunk,
    int i_row,
    int i_thread,
    int i_simd,
    int lane) {
  constexpr int chunks = (V + CHUNK - 1) / CHUNK;
  constexpr int width = 512;  // of a block
  constexpr int blocks = (V + width - 1) / width;
  constexpr int inside = CHUNK / width;
  const int first = i_chunk * CHUNK;
  const int n = metal::min(CHUNK, V - first);
  const int want = metal::min(n, M);
  const int at = i_row * chunks + i_chunk;

  for (int b = i_simd; b < inside && i_chunk * inside + b < blocks; b += 8) {
    const int begin = b * width;
    float most = -INFINITY;
    for (int i = begin + lane; i < begin + width; i += 32) {
      const float v = i < n ? static_cast<float>(logits[i_row * V + first + i]) * scale : -INFINITY;
      s[i] = v;
      most = v > most ? v : most;
    }
    most = simd_max(most);
    const float base = most == -INFINITY ? 0.0f : most;
    float sum = 0.0f;
    for (int i = begin + lane; i < begin + width; i += 32) {
      sum += sample_exp(s[i] - base);
    }
    sum = sample_fold(sum);
    if (lane == 0) {
      device float* to = block + 2 * (i_row * blocks + i_chunk * inside + b);
      to[0] = most;
      to[1] = sum;
    }
  }

  const SampleStaged keys = {s};
  const SampleFromChunk sink = {s, first, value + at * M, id + at * M};
  Selection chosen;  // a barrier comes before the first look at a key
  select_threshold<256>(keys, n, want, hist, part, i_thread, i_simd, lane, chosen);
  select_chosen<256, false>(keys, n, chosen, sink, part, i_thread, i_simd, lane);
  for (int i = want + i_thread; i < M; i += 256) {
    value[at * M + i] = -INFINITY;
    id[at * M + i] = -1;
  }
  if (i_thread == 0) {
    cut[at] = select_value(chosen.threshold);
    unchosen[at] = chosen.equal - chosen.take;
  }
}

template <typename P>
struct SampleValues {
  P value;
  METAL_FUNC uint at(int i) const {
    return select_key(value[i]);
  }
};
template <typename P, typename I>
struct SampleFromRow {
  P value;
  I id;
  device float* top;
  device int* top_id;
  METAL_FUNC void put(int slot, int i) const {
    top[slot] = value[i];
    top_id[slot] = id[i];
  }
};

// sample_row -- the M largest values of a row, how many values equal their smallest, its normaliser.
//   arrays    value id cut unchosen block as above; top, top_id [rows, M], ids ascending;
//             ties [rows, 1]: values of the whole row equal to the smallest of top;
//             total [rows, 2]: the row's maximum, the sum of exp(s - maximum)
//   grid      (256, rows, 1), threadgroup (256, 1, 1)
//   memory    M values and ids a chunk: 16 KB a row at M = 32
//   numerics  the sum as above. The arg-max is the lowest id of the largest of top
//   law       decode.md 1.4
//@kernel   sample_row
//@template CHUNKS:int BLOCKS:int M:int
//@in       value float32 rows, CHUNKS, M
//@in       id int32 rows, CHUNKS, M
//@in       cut float32 rows, CHUNKS
//@in       unchosen int32 rows, CHUNKS
//@in       block float32 rows, BLOCKS, 2
//@out      top float32 rows, M
//@out      top_id int32 rows, M
//@out      ties int32 rows, 1
//@out      total float32 rows, 2
//@shared   atomic_uint hist[256]
//@shared   uint part[11]
//@grid     256, rows, 1
//@group    256, 1, 1
//@call     sample_row<CHUNKS, BLOCKS, M>(value, id, cut, unchosen, block, top, top_id, ties, total, hist, part,
//@call         threadgroup_position_in_grid.y, thread_index_in_threadgroup,
//@call         simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <int CHUNKS, int BLOCKS, int M, typename P, typename I, typename C, typename U, typename B>
METAL_FUNC void sample_row(
    P value,
    I id,
    C cut,
    U unchosen,
    B block,
    device float* top,
    device int* top_id,
    device int* ties,
    device float* total,
    threadgroup atomic_uint* hist,
    threadgroup uint* part,
    int i_row,
    int i_thread,
    int i_simd,
    int lane) {
  const int at = i_row * CHUNKS * M;
  const SampleValues<P> keys = {value + at};
  const SampleFromRow<P, I> sink = {value + at, id + at, top + i_row * M, top_id + i_row * M};
  Selection chosen;
  select_threshold<256>(keys, CHUNKS * M, M, hist, part, i_thread, i_simd, lane, chosen);
  select_chosen<256, false>(keys, CHUNKS * M, chosen, sink, part, i_thread, i_simd, lane);

  if (i_simd == 0) {
    const int mine = 2 * i_row * BLOCKS;
    float most = -INFINITY;
    for (int b = lane; b < BLOCKS; b += 32) {
      const float v = block[mine + 2 * b];
      most = v > most ? v : most;
    }
    most = simd_max(most);
    float sum = 0.0f;
    for (int b = lane; b < BLOCKS; b += 32) {
      sum += separate_product(block[mine + 2 * b + 1], sample_exp(block[mine + 2 * b] - most));
    }
    sum = sample_fold(sum);
    if (lane == 0) {
      total[2 * i_row] = most;
      total[2 * i_row + 1] = sum;
    }
  }
  if (i_thread == 0) {
    int equal = chosen.equal;
    for (int i = i_row * CHUNKS; i < (i_row + 1) * CHUNKS; ++i) {
      if (select_key(cut[i]) == chosen.threshold) {
        equal += unchosen[i];
      }
    }
    ties[i_row] = equal;
  }
}

// sample_pick -- the token that a uniform draws from a row's candidates, without the host.
//   arrays    value, id [1, M], ids ascending, total [1, 2] as above; k: of the best so many;
//             top_p: 1 is no nucleus; u: the uniform; token [1]
//   grid      (32, 1, 1), threadgroup (32, 1, 1): a simdgroup
//   memory    M values and ids
//   numerics  float32, where the host has float64: a uniform at an edge may fall to the other side, which the host
//             sees when it draws again from the same candidates. Sums run over ids, ascending
//   law       decode.md 1.4 and 2
//@kernel   sample_pick
//@template M:int
//@in       value float32 1, M
//@in       id int32 1, M
//@in       total float32 1, 2
//@in       k int32 1
//@in       top_p float32 1
//@in       u float32 1
//@out      token int32 1
//@shared   float mass[M]
//@shared   float kept[M]
//@grid     32, 1, 1
//@group    32, 1, 1
//@call     sample_pick<M>(value, id, total[0], total[1], k[0], top_p[0], u[0], token, mass, kept, thread_index_in_simdgroup);
template <int M, typename P, typename I>
METAL_FUNC void sample_pick(
    P value,
    I id,
    float most,
    float sum,
    int k,
    float top_p,
    float u,
    device int* token,
    threadgroup float* mass,
    threadgroup float* kept,
    int lane) {
  for (int i = lane; i < M; i += 32) {
    mass[i] = sample_exp(value[i] - most);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const float limit = top_p < 1.0f ? top_p * sum : INFINITY;
  for (int i = lane; i < M; i += 32) {
    int rank = 0;
    float before = 0.0f;
    for (int j = 0; j < M; ++j) {
      if (value[j] > value[i] || (value[j] == value[i] && j < i)) {
        rank += 1;
        before += mass[j];
      }
    }
    kept[i] = rank < k && !(before >= limit) ? mass[i] : 0.0f;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) {
    float whole = 0.0f;
    for (int i = 0; i < M; ++i) {
      whole += kept[i];
    }
    const float target = u * whole;
    float reached = 0.0f;
    int drawn = id[0];
    for (int i = 0; i < M && !(reached > target); ++i) {
      if (kept[i] > 0.0f) {
        reached += kept[i];
        drawn = id[i];
      }
    }
    token[0] = drawn;
  }
}
