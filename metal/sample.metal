// Candidates of a logits row, so that the host reads a few hundred values
// instead of the vocabulary. s = float(logit) * inverse temperature.
//
// A chunk of CHUNK values hands its M largest on; the M largest of those are
// the row's. Among equal values the lower id is chosen, in both steps.

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

// sample_chunks -- the M largest values of each chunk, and its part of the normaliser.
//   arrays    logits [rows, V] in T; value, id [rows, CHUNKS, M], ids ascending, -inf and -1 where
//             a chunk is shorter than M; stat [rows, CHUNKS, 3]: maximum, sum of exp(s - maximum),
//             smallest chosen; unchosen [rows, CHUNKS]: values equal to that and left out
//   grid      (256, CHUNKS, rows), threadgroup (256, 1, 1)
//   memory    logits once: 0.5 MB at 248,320; 16 KB of shared memory at CHUNK 4096
//   numerics  s is one float product; sums in float in a fixed order
//   law       decode.md 1.4
//@kernel   sample_chunks
//@template T:type V:int M:int CHUNK:int
//@in       logits T rows, V
//@in       scale float32 1
//@out      value float32 rows, V/CHUNK, M
//@out      id int32 rows, V/CHUNK, M
//@out      stat float32 rows, V/CHUNK, 3
//@out      unchosen int32 rows, V/CHUNK
//@shared   float s[CHUNK]
//@shared   atomic_uint hist[256]
//@shared   uint part[11]
//@shared   float sums[16]
//@grid     256, V/CHUNK, rows
//@group    256, 1, 1
//@call     sample_chunks<T, V, M, CHUNK>(logits, scale[0], value, id, stat, unchosen, s, hist, part, sums,
//@call         threadgroup_position_in_grid.y, threadgroup_position_in_grid.z, thread_index_in_threadgroup,
//@call         simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <typename T, int V, int M, int CHUNK>
METAL_FUNC void sample_chunks(
    const device T* logits,
    float scale,
    device float* value,
    device int* id,
    device float* stat,
    device int* unchosen,
    threadgroup float* s,
    threadgroup atomic_uint* hist,
    threadgroup uint* part,
    threadgroup float* sums,
    int i_chunk,
    int i_row,
    int i_thread,
    int i_simd,
    int lane) {
  constexpr int chunks = (V + CHUNK - 1) / CHUNK;
  const int first = i_chunk * CHUNK;
  const int n = metal::min(CHUNK, V - first);
  const int want = metal::min(n, M);
  const int at = i_row * chunks + i_chunk;

  float most = -INFINITY;
  for (int i = i_thread; i < n; i += 256) {
    s[i] = static_cast<float>(logits[i_row * V + first + i]) * scale;
    most = metal::max(most, s[i]);
  }
  most = group_max<8>(most, sums, i_simd, lane);
  float sum = 0.0f;
  for (int i = i_thread; i < n; i += 256) {
    sum += metal::exp(s[i] - most);
  }
  sum = group_sum<8>(sum, sums + 8, i_simd, lane);

  const SampleStaged keys = {s};
  const SampleFromChunk sink = {s, first, value + at * M, id + at * M};
  Selection chosen;
  select_threshold<256>(keys, n, want, hist, part, i_thread, i_simd, lane, chosen);
  select_chosen<256, false>(keys, n, chosen, sink, part, i_thread, i_simd, lane);
  for (int i = want + i_thread; i < M; i += 256) {
    value[at * M + i] = -INFINITY;
    id[at * M + i] = -1;
  }
  if (i_thread == 0) {
    stat[3 * at] = most;
    stat[3 * at + 1] = sum;
    stat[3 * at + 2] = select_value(chosen.threshold);
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

// sample_row -- the M largest values of a row, its arg-max and log-sum-exp.
//   arrays    value id stat unchosen as above; top, top_id [rows, M], ids ascending;
//             ties [rows, 1]: values of the whole row equal to the smallest of top;
//             best [rows, 1]: lowest id of the largest value; lse [rows, 1]
//   grid      (256, rows, 1), threadgroup (256, 1, 1)
//   memory    M values and ids a chunk: 39 KB a row at M = 80
//   numerics  float, chunks in order
//   law       decode.md 1.4
//@kernel   sample_row
//@template CHUNKS:int M:int
//@in       value float32 rows, CHUNKS, M
//@in       id int32 rows, CHUNKS, M
//@in       stat float32 rows, CHUNKS, 3
//@in       unchosen int32 rows, CHUNKS
//@out      top float32 rows, M
//@out      top_id int32 rows, M
//@out      ties int32 rows, 1
//@out      best int32 rows, 1
//@out      lse float32 rows, 1
//@shared   atomic_uint hist[256]
//@shared   uint part[11]
//@shared   float sums[8]
//@shared   int ids[8]
//@grid     256, rows, 1
//@group    256, 1, 1
//@call     sample_row<CHUNKS, M>(value, id, stat, unchosen, top, top_id, ties, best, lse, hist, part, sums,
//@call         ids, threadgroup_position_in_grid.y, thread_index_in_threadgroup,
//@call         simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <int CHUNKS, int M, typename P, typename I, typename S, typename U>
METAL_FUNC void sample_row(
    P value,
    I id,
    S stat,
    U unchosen,
    device float* top,
    device int* top_id,
    device int* ties,
    device int* best,
    device float* lse,
    threadgroup atomic_uint* hist,
    threadgroup uint* part,
    threadgroup float* sums,
    threadgroup int* ids,
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

  float most = -INFINITY;
  for (int i = i_thread; i < CHUNKS; i += 256) {
    most = metal::max(most, stat[3 * (i_row * CHUNKS + i)]);
  }
  most = group_max<8>(most, sums, i_simd, lane);
  int lowest = -0x7fffffff;  // minus the id, so that the largest is the lowest id
  for (int i = i_thread; i < CHUNKS * M; i += 256) {
    if (value[at + i] == most) {
      lowest = metal::max(lowest, -id[at + i]);
    }
  }
  lowest = group_max<8>(lowest, ids, i_simd, lane);
  if (i_thread == 0) {
    float sum = 0.0f;
    int equal = chosen.equal;
    for (int i = 0; i < CHUNKS; ++i) {
      const int chunk = i_row * CHUNKS + i;
      sum = metal::fma(stat[3 * chunk + 1], metal::exp(stat[3 * chunk] - most), sum);
      if (select_key(stat[3 * chunk + 2]) == chosen.threshold) {
        equal += unchosen[chunk];
      }
    }
    ties[i_row] = equal;
    best[i_row] = -lowest;
    lse[i_row] = most + metal::log(sum);
  }
}
