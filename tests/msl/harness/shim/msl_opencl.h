// Type-checking view of Metal for the lint: C++ for OpenCL 2021, whose
// __global, __local, __constant and __private follow the rules of Metal's
// device, threadgroup, constant and thread. Nothing here runs.
#pragma once
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef uchar uint8_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef float float2 __attribute__((ext_vector_type(2)));
typedef float float4 __attribute__((ext_vector_type(4)));
typedef uint uint2 __attribute__((ext_vector_type(2)));
typedef uint uint3 __attribute__((ext_vector_type(3)));
typedef uint uint4 __attribute__((ext_vector_type(4)));
#define float2(...) ((float2)(__VA_ARGS__))
#define float4(...) ((float4)(__VA_ARGS__))
#define uint4(...) ((uint4)(__VA_ARGS__))
#define INFINITY __builtin_inff()

// The lint has one 16-bit float; the CPU shim has Metal's own bfloat.
typedef half float16_t;
typedef half bfloat16_t;

template <class To, class From>
To as_type(From f) {
  return __builtin_astype(f, To);
}

namespace metal {
float exp(float);
float log(float);
float sqrt(float);
float rsqrt(float);
float fma(float, float, float);
template <class T>
T abs(T);
template <class T>
T max(T, T);
template <class T>
T min(T, T);
uint popcount(uint);

template <class T>
T simd_sum(T);
template <class T>
T simd_max(T);
template <class T>
T simd_shuffle(T, ushort);
template <class T>
T simd_broadcast(T, ushort);
template <class T>
T simd_shuffle_xor(T, ushort);
template <class T>
T simd_prefix_exclusive_sum(T);

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2
};
void msl_threadgroup_barrier(mem_flags);
void msl_simdgroup_barrier(mem_flags);

// OpenCL has functions and types of these names, with other meanings.
enum msl_memory_order { msl_memory_order_relaxed };
template <class T>
struct msl_atomic {
  T v;
};
uint msl_fetch_add(__local msl_atomic<uint>*, uint, msl_memory_order);
uint msl_load(const __local msl_atomic<uint>*, msl_memory_order);
void msl_store(__local msl_atomic<uint>*, uint, msl_memory_order);
} // namespace metal
#define threadgroup_barrier metal::msl_threadgroup_barrier
#define simdgroup_barrier metal::msl_simdgroup_barrier
#define memory_order_relaxed metal::msl_memory_order_relaxed
#define atomic_uint metal::msl_atomic<uint>
#define atomic_fetch_add_explicit metal::msl_fetch_add
#define atomic_load_explicit metal::msl_load
#define atomic_store_explicit metal::msl_store
using namespace metal;
