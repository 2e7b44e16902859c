// The words in which Metal, CUDA, the lint and the checked CPU threads differ.
// In front of every family's text; metal/cuda.h goes before it on CUDA.
//   TGMEM       declares an array in threadgroup memory, outermost level only
//   METAL_FUNC  marks every function; Metal's own library defines it
#if defined(__METAL_VERSION__)
#define TGMEM threadgroup
#elif defined(__CUDACC__)
#define TGMEM __shared__
#define METAL_FUNC __device__ __forceinline__
#elif defined(__OPENCL_CPP_VERSION__)
#define TGMEM __local
#define METAL_FUNC inline
#else
#define TGMEM static constinit __attribute__((aligned(1024), used))
#define METAL_FUNC inline __attribute__((always_inline))
#endif

