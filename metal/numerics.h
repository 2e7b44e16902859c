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

// Largest value of a threadgroup, the same in all threads; `part` as above.
template <int SIMDS, typename V>
METAL_FUNC V group_max(V v, threadgroup V* part, int i_simd, int lane) {
  const V most = simd_max(v);
  if (lane == 0) {
    part[i_simd] = most;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  V total = part[0];
  for (int i = 1; i < SIMDS; ++i) {
    total = metal::max(total, part[i]);
  }
  return total;
}

// Eight values of type T from their words in memory order.
template <typename T>
METAL_FUNC void unpacked8(thread const uint (&words)[4], thread float (&v)[8]) {
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = static_cast<float>(as_type<T>(static_cast<ushort>(words[i] & 0xffffu)));
    v[2 * i + 1] = static_cast<float>(as_type<T>(static_cast<ushort>(words[i] >> 16)));
  }
}
template <typename T>
METAL_FUNC void unpacked8(thread const uint (&words)[8], thread float (&v)[8]) {
  #pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = as_type<float>(words[i]);
  }
}

// Eight consecutive values; the address is a multiple of 16 bytes.
template <typename T>
METAL_FUNC void load8(const device T* p, thread float (&v)[8]) {
  const uint4 b = *(const device uint4*)(p);
  const uint words[4] = {b.x, b.y, b.z, b.w};
  unpacked8<T>(words, v);
}
METAL_FUNC void load8(const device float* p, thread float (&v)[8]) {
  const float4 a = *(const device float4*)(p);
  const float4 b = *(const device float4*)(p + 4);
  v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
  v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}

// Four consecutive values; the address is a multiple of 8 bytes, or of 16 for float.
template <typename T>
METAL_FUNC void load4(const device T* p, thread float* v) {
  const uint2 b = *(const device uint2*)(p);
  const uint words[2] = {b.x, b.y};
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    v[2 * i] = static_cast<float>(as_type<T>(static_cast<ushort>(words[i] & 0xffffu)));
    v[2 * i + 1] = static_cast<float>(as_type<T>(static_cast<ushort>(words[i] >> 16)));
  }
}
METAL_FUNC void load4(const device float* p, thread float* v) {
  const float4 b = *(const device float4*)(p);
  v[0] = b.x; v[1] = b.y; v[2] = b.z; v[3] = b.w;
}
