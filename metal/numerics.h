// The arithmetic that families share, after dialect.h and before each of them.

// Where the model rounds to its type: the nearest T, computed on as float.
template <typename T>
METAL_FUNC float rounded(float v) {
  return static_cast<float>(static_cast<T>(v));
}

// A product that no compiler contracts with a later sum.
METAL_FUNC float separate_product(float a, float b) {
  return metal::fma(a, b, 0.0f);
}

METAL_FUNC float sigmoid_f(float v) {
  return 1.0f / (1.0f + metal::exp(-v));
}

// silu as the model has it: the sigmoid rounds, then the product.
template <typename T>
METAL_FUNC float silu_rounded(float v) {
  return rounded<T>(v * rounded<T>(sigmoid_f(v)));
}

// Sum over a threadgroup of SIMDS whole simdgroups, the same in all threads:
// lane trees, then simdgroups in order. `part` [SIMDS] belongs to this call.
template <int SIMDS>
METAL_FUNC float group_sum(float v, threadgroup float* part, int i_simd, int lane) {
  const float sum = simd_sum(v);
  if (lane == 0) {
    part[i_simd] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (int i = 0; i < SIMDS; ++i) {
    total += part[i];
  }
  return total;
}

