// Metal's vocabulary in CUDA, for the functions that the kernels use. It goes
// before dialect.h in the header that mlx::core::fast::cuda_kernel gets; both
// that and the family's text stand in namespace mlx::core::cu. NVRTC only.
//
// simdgroup = warp; a reduction is five xor shuffles in ascending order, so a
// sum has the bits of the checked CPU threads.
#define MSL_D __device__ __forceinline__
#define MSL_ALL_LANES 0xffffffffu
#define INFINITY __int_as_float(0x7f800000)

namespace mlx::core::cu {
namespace metal {

using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
using half = ::__half;
using float16_t = ::__half;
using bfloat = ::__nv_bfloat16;
using bfloat16_t = ::__nv_bfloat16;

template <class T, int N>
struct vec;
template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  MSL_D vec(T a, T b) : x(a), y(b) {}
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  MSL_D vec(T a, T b, T c) : x(a), y(b), z(c) {}
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  MSL_D vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
};
using float2 = vec<float, 2>;
using float4 = vec<float, 4>;
using uint2 = vec<uint, 2>;
using uint3 = vec<uint, 3>;
using uint4 = vec<uint, 4>;

MSL_D float exp(float x) {
  return ::expf(x);
}
MSL_D float log(float x) {
  return ::logf(x);
}
MSL_D float sqrt(float x) {
  return ::sqrtf(x);
}
MSL_D float rsqrt(float x) {
  return ::rsqrtf(x);
}
MSL_D float fma(float a, float b, float c) {
  return ::fmaf(a, b, c);
}
template <class T>
MSL_D T abs(T a) {
  return a < T(0) ? -a : a;
}
template <class T>
MSL_D T max(T a, T b) {
  return a > b ? a : b;
}
template <class T>
MSL_D T min(T a, T b) {
  return a < b ? a : b;
}
template <>
MSL_D float max(float a, float b) {
  return ::fmaxf(a, b);
}
template <>
MSL_D float min(float a, float b) {
  return ::fminf(a, b);
}
MSL_D uint popcount(uint x) {
  return ::__popc(x);
}
template <class To, class From>
MSL_D To as_type(From f) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  union Both {
    From from;
    To to;
    MSL_D Both() {}
  } both;
  both.from = f;
  return both.to;
}

MSL_D uint msl_thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
template <class T>
MSL_D T simd_shuffle(T v, ushort lane) {
  return ::__shfl_sync(MSL_ALL_LANES, v, lane);
}
template <class T>
MSL_D T simd_broadcast(T v, ushort lane) {
  return ::__shfl_sync(MSL_ALL_LANES, v, lane);
}
template <class T>
MSL_D T simd_shuffle_xor(T v, ushort mask) {
  return ::__shfl_xor_sync(MSL_ALL_LANES, v, mask);
}
template <class T>
MSL_D T simd_sum(T v) {
  for (int mask = 1; mask < 32; mask <<= 1) {
    v = v + ::__shfl_xor_sync(MSL_ALL_LANES, v, mask);
  }
  return v;
}
template <class T>
MSL_D T simd_max(T v) {
  for (int mask = 1; mask < 32; mask <<= 1) {
    v = metal::max(v, ::__shfl_xor_sync(MSL_ALL_LANES, v, mask));
  }
  return v;
}
template <class T>
MSL_D T simd_prefix_exclusive_sum(T v) {
  const uint lane = msl_thread() & 31u;
  T sum = v;
  for (int d = 1; d < 32; d <<= 1) {
    const T below = ::__shfl_up_sync(MSL_ALL_LANES, sum, d);
    sum = lane >= uint(d) ? sum + below : sum;
  }
  return sum - v;  // integers only: no rounding
}

enum class mem_flags : unsigned { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
MSL_D void threadgroup_barrier(mem_flags) {
  __syncthreads();
}
MSL_D void simdgroup_barrier(mem_flags) {
  __syncwarp();
}

enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T v;
};
using atomic_uint = atomic<uint>;
MSL_D uint atomic_fetch_add_explicit(atomic_uint* p, uint x, memory_order) {
  return ::atomicAdd(&p->v, x);
}
MSL_D uint atomic_load_explicit(const atomic_uint* p, memory_order) {
  return *(const volatile uint*)&p->v;
}
MSL_D void atomic_store_explicit(atomic_uint* p, uint x, memory_order) {
  *(volatile uint*)&p->v = x;
}

MSL_D uint3 msl_position() {
  return uint3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
               blockIdx.z * blockDim.z + threadIdx.z);
}
MSL_D uint3 msl_uint3(const ::uint3& v) {
  return uint3(v.x, v.y, v.z);
}
}  // namespace metal
using namespace metal;
}  // namespace mlx::core::cu

#define thread_position_in_grid ::mlx::core::cu::metal::msl_position()
#define threadgroup_position_in_grid ::mlx::core::cu::metal::msl_uint3(blockIdx)
#define thread_index_in_threadgroup ::mlx::core::cu::metal::msl_thread()
#define thread_index_in_simdgroup (::mlx::core::cu::metal::msl_thread() & 31u)
#define simdgroup_index_in_threadgroup (::mlx::core::cu::metal::msl_thread() >> 5)
// Last: these words are common identifiers.
#define device
#define constant
#define thread
#define threadgroup
#define kernel
