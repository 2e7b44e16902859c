// Simdgroup functions, barriers and threadgroup atomics on CPU fibers. Every
// function carries its call site, so that divergence is reported by line.
#pragma once
#include <cstring>
#include <limits>
#include "msl_math.h"
#include "msl_rt.h"

#define MSL_SITE(op_) \
  msl_site {          \
    file, line, op_   \
  }
#define MSL_LOC const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace metal {

typedef const uint8_t (*msl_snapshot)[16];

template <class T>
MSL_AI T msl_get(msl_snapshot snapshot, uint lane) {
  T r;
  __builtin_memcpy(&r, snapshot[lane], sizeof r);
  return r;
}

template <class T>
MSL_AI T msl_read_lane(T v, uint lane, msl_site site) {
  static_assert(sizeof(T) <= 16);
  msl_snapshot snapshot;
  const uint mask = msl_simd_exchange(&v, sizeof(T), site, &snapshot);
  if (lane > 31 || !(mask >> lane & 1)) {
    msl_report(
        "simd-read-inactive",
        site,
        "value of a lane that is not active");
    return v;
  }
  return msl_get<T>(snapshot, lane);
}

// Balanced tree in lane order: the value of the ascending xor butterfly.
template <class T, class F>
MSL_AI T msl_tree(T v, T identity, F f, msl_site site) {
  msl_snapshot snapshot;
  const uint mask = msl_simd_exchange(&v, sizeof(T), site, &snapshot);
  T a[32];
  for (uint i = 0; i < 32; ++i) {
    a[i] = (mask >> i & 1) ? msl_get<T>(snapshot, i) : identity;
  }
  for (int n = 16; n; n >>= 1) {
    for (int i = 0; i < n; ++i) {
      a[i] = f(a[2 * i], a[2 * i + 1]);
    }
  }
  return a[0];
}

template <class T>
MSL_AI T simd_sum(T v, MSL_LOC) {
  return msl_tree(
      v,
      T(0),
      [](T a, T b) { return T(a + b); },
      MSL_SITE("simd_sum"));
}
template <class T>
MSL_AI T simd_max(T v, MSL_LOC) {
  return msl_tree(
      v,
      std::numeric_limits<T>::lowest(),
      [](T a, T b) { return metal::max(a, b); },
      MSL_SITE("simd_max"));
}
template <class T>
MSL_AI T simd_shuffle(T v, ushort lane, MSL_LOC) {
  return msl_read_lane(v, lane, MSL_SITE("simd_shuffle"));
}
template <class T>
MSL_AI T simd_broadcast(T v, ushort lane, MSL_LOC) {
  return msl_read_lane(v, lane, MSL_SITE("simd_broadcast"));
}
template <class T>
MSL_AI T simd_shuffle_xor(T v, ushort mask, MSL_LOC) {
  return msl_read_lane(v, msl_lane() ^ mask, MSL_SITE("simd_shuffle_xor"));
}
template <class T>
MSL_AI T simd_prefix_exclusive_sum(T v, MSL_LOC) {
  msl_snapshot snapshot;
  const uint mask = msl_simd_exchange(
      &v,
      sizeof(T),
      MSL_SITE("simd_prefix_exclusive_sum"),
      &snapshot);
  T sum = T(0);
  for (uint i = 0; i < msl_lane(); ++i) {
    if (mask >> i & 1) {
      sum = T(sum + msl_get<T>(snapshot, i));
    }
  }
  return sum;
}

enum class mem_flags : unsigned {
  mem_none = MSL_MEM_NONE,
  mem_device = MSL_MEM_DEVICE,
  mem_threadgroup = MSL_MEM_THREADGROUP
};
MSL_AI void threadgroup_barrier(mem_flags f, MSL_LOC) {
  msl_barrier(1, unsigned(f), MSL_SITE("threadgroup_barrier"));
}
MSL_AI void simdgroup_barrier(mem_flags f, MSL_LOC) {
  msl_barrier(0, unsigned(f), MSL_SITE("simdgroup_barrier"));
}

enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T v;
  constexpr atomic() : v() {
  }
};
typedef atomic<uint> atomic_uint;

// A load and a store that the access hooks do not see.
template <class T>
__attribute__((noinline, no_sanitize("thread"))) T msl_load(const T* p) {
  return *p;
}
template <class T>
__attribute__((noinline, no_sanitize("thread"))) void msl_store(T* p, T v) {
  *p = v;
}

template <class T>
MSL_AI T atomic_fetch_add_explicit(atomic<T>* p, T x, memory_order) {
  msl_atomic_access(p, sizeof(T), MSL_ADD);
  const T old = msl_load(&p->v);
  msl_store(&p->v, T(old + x));
  return old;
}
template <class T>
MSL_AI T atomic_load_explicit(const atomic<T>* p, memory_order) {
  msl_atomic_access(p, sizeof(T), MSL_LOAD);
  return msl_load(&p->v);
}
template <class T>
MSL_AI void atomic_store_explicit(atomic<T>* p, T x, memory_order) {
  msl_atomic_access(p, sizeof(T), MSL_STORE);
  msl_store(&p->v, x);
}

} // namespace metal
