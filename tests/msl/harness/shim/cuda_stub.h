// The part of MLX's CUDA device header that kernel text touches: the 16-bit
// types and fixed-width integers. The real header is used on a CUDA machine.
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __device__ __nv_bfloat16(float f) {
    const unsigned u = __float_as_uint(f);
    bits = (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  __device__ operator float() const {
    return __uint_as_float((unsigned)bits << 16);
  }
};

struct __half {
  unsigned short bits;
  __half() = default;
  __device__ __half(float f) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f));
  }
  __device__ operator float() const {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
  }
};
