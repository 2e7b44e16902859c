// Exact selection of the largest of many keys by one threadgroup: four passes
// of a radix histogram find the threshold, one more hands the chosen out in
// index order. After numerics.h, before each family.
//
// GROUP threads, a multiple of 32 and at least 256. KEYS has `uint at(int i)`,
// SINK has `void put(int slot, int i)`. `hist` [256], `part` [GROUP/32 + 3].

struct Selection {
  uint threshold;  // the smallest chosen key
  int take;        // chosen keys equal to it
  int equal;       // all keys equal to it
};

// Unsigned integers in the order of floats; both zeros are one key.
METAL_FUNC uint select_key(float v) {
  const uint bits = v == 0.0f ? 0u : as_type<uint>(v);
  return (bits & 0x80000000u) != 0u ? ~bits : (bits | 0x80000000u);
}

METAL_FUNC float select_value(uint key) {
  return as_type<float>((key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key);
}

// Threshold of the `want` largest of n keys, 1 <= want <= n.
template <int GROUP, typename KEYS>
METAL_FUNC void select_threshold(
    thread const KEYS& keys,
    int n,
    int want,
    threadgroup atomic_uint* hist,
    threadgroup uint* part,
    int i_thread,
    int i_simd,
    int lane,
    thread Selection& out) {
  threadgroup uint* found = part + GROUP / 32;
  uint prefix = 0u;  // digits of the threshold so far
  uint mask = 0u;
  uint left = static_cast<uint>(want);  // rank inside the prefix's class
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (i_thread < 256) {
      atomic_store_explicit(&hist[i_thread], 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = i_thread; i < n; i += GROUP) {
      const uint key = keys.at(i);
      if ((key & mask) == prefix) {
        atomic_fetch_add_explicit(&hist[(key >> shift) & 255u], 1u, memory_order_relaxed);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Thread t counts digit 255 - t and, by the prefix sum, the digits above it.
    const uint digit = 255u - static_cast<uint>(metal::min(i_thread, 255));
    const uint count = i_thread < 256 ? atomic_load_explicit(&hist[digit], memory_order_relaxed) : 0u;
    uint above = simd_prefix_exclusive_sum(count);
    if (lane == 31) {
      part[i_simd] = above + count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < i_simd; ++i) {
      above += part[i];
    }
    if (i_thread < 256 && above < left && above + count >= left) {
      found[0] = digit;
      found[1] = above;
      found[2] = count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    prefix |= found[0] << shift;
    mask |= 255u << shift;
    left -= found[1];
  }
  out.threshold = prefix;
  out.take = static_cast<int>(left);
  out.equal = static_cast<int>(found[2]);
}

// Puts every chosen index into its slot, ascending. Among keys equal to the
// threshold the first ones are chosen, or the last ones if LAST.
template <int GROUP, bool LAST, typename KEYS, typename SINK>
METAL_FUNC void select_chosen(
    thread const KEYS& keys,
    int n,
    thread const Selection& s,
    thread const SINK& sink,
    threadgroup uint* part,
    int i_thread,
    int i_simd,
    int lane) {
  const int skip = LAST ? s.equal - s.take : 0;
  int n_above = 0;  // before this stretch
  int n_equal = 0;
  for (int first = 0; first < n; first += GROUP) {
    const int i = first + i_thread;
    const uint key = i < n ? keys.at(i) : 0u;
    const bool is_above = i < n && key > s.threshold;
    const bool is_equal = i < n && key == s.threshold;
    // Both counts in one prefix sum, equal keys in the high half.
    const uint mine = (is_above ? 1u : 0u) | (is_equal ? 0x10000u : 0u);
    uint before = simd_prefix_exclusive_sum(mine);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the last readers of part are through
    if (lane == 31) {
      part[i_simd] = before + mine;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint all = 0u;
    for (int j = 0; j < GROUP / 32; ++j) {
      before += j < i_simd ? part[j] : 0u;
      all += part[j];
    }
    const int rank = n_equal + static_cast<int>(before >> 16) - skip;
    if (is_above || (is_equal && rank >= 0 && rank < s.take)) {
      const int taken = metal::min(metal::max(rank, 0), s.take);
      sink.put(n_above + static_cast<int>(before & 0xffffu) + taken, i);
    }
    n_above += static_cast<int>(all & 0xffffu);
    n_equal += static_cast<int>(all >> 16);
  }
}

