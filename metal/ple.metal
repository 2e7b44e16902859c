// The n-gram layer after its two projections: gate, norm, dilated convolution,
// and the shift of its state. C streams, each H wide.

// Sum of squares of one stream over a threadgroup of 256.
template <typename T, int H>
METAL_FUNC float ple_inverse(
    const device T* v,
    float eps,
    threadgroup float* part,
    int i_thread,
    int i_simd,
    int lane) {
  float square = 0.0f;
  for (int i = i_thread; i < H; i += 256) {
    const float b_v = static_cast<float>(v[i]);
    square = metal::fma(b_v, b_v, square);
  }
  return metal::rsqrt(group_sum<8>(square, part, i_simd, lane) / static_cast<float>(H) + eps);
}

template <typename T>
METAL_FUNC float ple_scaled(T v, float inverse, T w) {
  return rounded<T>(rounded<T>(static_cast<float>(v) * inverse) * static_cast<float>(w));
}

// ple_gate -- the gated value of each stream and its norm.
//   arrays    key x gated normed [rows, C*H], value [rows, H], norm_* [C*H] in T
//   grid      (256, C, rows), threadgroup (256, 1, 1): one stream of one row
//   memory    each array once: 0.1 MB a row at 4 x 2560; 128 B of shared memory
//   numerics  norms round twice; products of key and query round, their sum is float and
//             rounds after 1/sqrt(H); sqrt, sigmoid and gated value round
//   law       model.md 10.2, 13
//@kernel   ple_gate
//@template T:type C:int H:int
//@in       key T rows, C*H
//@in       value T rows, H
//@in       x T rows, C*H
//@in       norm_key T C*H
//@in       norm_query T C*H
//@in       norm_conv T C*H
//@in       eps float32 1
//@out      gated T rows, C*H
//@out      normed T rows, C*H
//@shared   float part[32]
//@grid     256, C, rows
//@group    256, 1, 1
//@call     ple_gate<T, C, H>(key, value, x, norm_key, norm_query, norm_conv, eps[0], gated, normed,
//@call         part, threadgroup_position_in_grid.y, threadgroup_position_in_grid.z,
//@call         thread_index_in_threadgroup, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <typename T, int C, int H>
METAL_FUNC void ple_gate(
    const device T* key,
    const device T* value,
    const device T* x,
    const device T* norm_key,
    const device T* norm_query,
    const device T* norm_conv,
    float eps,
    device T* gated,
    device T* normed,
    threadgroup float* part,
    int i_stream,
    int i_row,
    int i_thread,
    int i_simd,
    int lane) {
  const int at = (i_row * C + i_stream) * H;
  const int w = i_stream * H;
  const float key_inverse = ple_inverse<T, H>(key + at, eps, part, i_thread, i_simd, lane);
  const float x_inverse = ple_inverse<T, H>(x + at, eps, part + 8, i_thread, i_simd, lane);
  float dot = 0.0f;
  for (int i = i_thread; i < H; i += 256) {
    const float b_key = ple_scaled(key[at + i], key_inverse, norm_key[w + i]);
    const float b_query = ple_scaled(x[at + i], x_inverse, norm_query[w + i]);
    dot += rounded<T>(separate_product(b_key, b_query));
  }
  dot = group_sum<8>(dot, part + 16, i_simd, lane);
  const float s = rounded<T>(dot * (1.0f / metal::sqrt(static_cast<float>(H))));
  const float root = rounded<T>(metal::sqrt(metal::max(metal::abs(s), rounded<T>(1e-6f))));
  const float gate = rounded<T>(sigmoid_f(s > 0.0f ? root : s < 0.0f ? -root : 0.0f));
  float square = 0.0f;
  for (int i = i_thread; i < H; i += 256) {
    const float b_gated = rounded<T>(gate * static_cast<float>(value[i_row * H + i]));
    gated[at + i] = static_cast<T>(b_gated);
    square = metal::fma(b_gated, b_gated, square);
  }
  const float total = group_sum<8>(square, part + 24, i_simd, lane);
  const float inverse = metal::rsqrt(total / static_cast<float>(H) + eps);
  for (int i = i_thread; i < H; i += 256) {
    // A thread reads back only what it wrote itself.
    normed[at + i] = static_cast<T>(ple_scaled(gated[at + i], inverse, norm_conv[w + i]));
  }
}

// ple_conv -- gated + silu(dilated causal convolution of normed): what x gains.
//   arrays    gated normed added [rows, W], tail tail_out [(TAPS-1)*DIL, W] in T, oldest first: the rows of
//             `normed` before these and after them; conv_w [TAPS, W] float, W = C*H
//   grid      (W, rows, 1), threadgroup (256, 1, 1)
//   memory    TAPS + 2 values a column and row: 0.5 MB for 4 rows at the released size
//   numerics  float, fma over taps oldest first; rounds after conv, silu, gated + conv
//   law       model.md 10.2
//@kernel   ple_conv
//@template T:type W:int TAPS:int DIL:int
//@in       gated T rows, W
//@in       normed T rows, W
//@in       n_rows int32 1
//@in       tail T (TAPS-1)*DIL, W
//@in       conv_w float32 TAPS, W
//@out      added T rows, W
//@out      tail_out T (TAPS-1)*DIL, W
//@grid     W, rows, 1
//@group    256, 1, 1
//@call     ple_conv<T, W, TAPS, DIL>(gated, normed, n_rows[0], tail, conv_w, added, tail_out,
//@call         thread_position_in_grid.x, thread_position_in_grid.y);
template <typename T, int W, int TAPS, int DIL>
METAL_FUNC void ple_conv(
    const device T* gated,
    const device T* normed,
    int n_rows,
    const device T* tail,
    const device float* conv_w,
    device T* added,
    device T* tail_out,
    int i,
    int i_row) {
  constexpr int past = (TAPS - 1) * DIL;
  if (i >= W) {
    return;
  }
  float sum = 0.0f;
  for (int t = 0; t < TAPS; ++t) {
    const int i_now = i_row + t * DIL - past;
    const T v = i_now >= 0 ? normed[i_now * W + i] : tail[(i_now + past) * W + i];
    sum = metal::fma(conv_w[t * W + i], static_cast<float>(v), sum);
  }
  const float conv = silu_rounded<T>(rounded<T>(sum));
  added[i_row * W + i] = static_cast<T>(static_cast<float>(gated[i_row * W + i]) + conv);
  if (i_row == 0) {
    for (int t = 0; t < past; ++t) {
      const int i_now = n_rows + t - past;
      tail_out[t * W + i] = i_now >= 0 ? normed[i_now * W + i] : tail[(i_now + past) * W + i];
    }
  }
}
