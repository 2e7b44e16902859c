// What a kernel sees in place of <metal_stdlib> when it runs on a CPU: g++ or
// clang, C++20. Only the functions that metal/ uses; add here what it needs.
#pragma once
#include "msl_simd.h"

// Address spaces are the lint's business (msl_opencl.h); here they vanish.
#define device
#define constant
#define thread
#define threadgroup
#define kernel

using namespace metal;
typedef metal::bfloat bfloat16_t; // from MLX's own prelude
typedef half float16_t;

// For the entry that Python calls: ids in, kernel parameters out.
static inline uint msl_id(uint v) {
  return v;
}
static inline uint3 msl_id(msl_u3 v) {
  return uint3(v.x, v.y, v.z);
}
