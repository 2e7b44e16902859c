// The residual of C streams, each H wide: norm and write-back.
//
// A read is: z = norm(x); low = D z / C, its first R values through silu and the
// rest for the inject (rows_dense or rows_affine of [D; B] with SILU = R, DIV =
// C); rows_mix. hyper_write adds a block's output and makes the next read's z
// in the same launch.

// RMS norm of one stream, of which a thread holds every 256th value: rounds
// after the norm and after the weight.
template <typename T, int H>
METAL_FUNC void hyper_normalise(
    thread const float (&x)[(H + 255) / 256],
    const device T* w,
    float eps,
    threadgroup float* part,
    device T* z,
    int i_thread,
    int i_simd,
    int lane) {
  float square = 0.0f;
  for (int j = 0; j < (H + 255) / 256; ++j) {
    square = metal::fma(x[j], x[j], square);
  }
  const float total = group_sum<8>(square, part, i_simd, lane);
  const float inverse = metal::rsqrt(total / static_cast<float>(H) + eps);
  for (int j = 0; j < (H + 255) / 256; ++j) {
    const int i = i_thread + 256 * j;
    if (i < H) {
      z[i] = static_cast<T>(rounded<T>(x[j] * inverse) * static_cast<float>(w[i]));
    }
  }
}

// hyper_norm -- z = grouped RMS norm of the streams.
//   arrays    x z [rows, C*H], w [C*H] in T (one-centred)
//   grid      (256, C, rows), threadgroup (256, 1, 1): one stream of one row
//   memory    x once, z once: 20 KB each a row
//   numerics  float sum of squares by fma; rounds after norm and weight
//   law       model.md 4, 6
//@kernel   hyper_norm
//@template T:type C:int H:int
//@in       x T rows, C*H
//@in       w T C*H
//@in       eps float32 1
//@out      z T rows, C*H
//@shared   float part[8]
//@grid     256, C, rows
//@group    256, 1, 1
//@call     hyper_norm<T, C, H>(x, w, eps[0], z, part, threadgroup_position_in_grid.y,
//@call         threadgroup_position_in_grid.z, thread_index_in_threadgroup,
//@call         simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <typename T, int C, int H>
METAL_FUNC void hyper_norm(
    const device T* x,
    const device T* w,
    float eps,
    device T* z,
    threadgroup float* part,
    int i_stream,
    int i_row,
    int i_thread,
    int i_simd,
    int lane) {
  const int at = (i_row * C + i_stream) * H;
  float b_x[(H + 255) / 256];
  for (int j = 0; j < (H + 255) / 256; ++j) {
    const int i = i_thread + 256 * j;
    b_x[j] = i < H ? static_cast<float>(x[at + i]) : 0.0f;
  }
  hyper_normalise<T, H>(b_x, w + i_stream * H, eps, part, z + at, i_thread, i_simd, lane);
}

// hyper_write -- x += g y on each stream, and z of the sum.
//   arrays    x x_out z [rows, C*H], y [rows, H], g [rows, C], w [C*H] in T
//   grid      as hyper_norm
//   memory    x, y read, x_out, z written: 66 KB a row at 4 x 2560
//   numerics  the product rounds, then the sum; z as hyper_norm
//   law       model.md 6
//@kernel   hyper_write
//@template T:type C:int H:int
//@in       x T rows, C*H
//@in       y T rows, H
//@in       g T rows, C
//@in       w T C*H
//@in       eps float32 1
//@out      x_out T rows, C*H
//@out      z T rows, C*H
//@shared   float part[8]
//@grid     256, C, rows
//@group    256, 1, 1
//@call     hyper_write<T, C, H>(x, y, g, w, eps[0], x_out, z, part, threadgroup_position_in_grid.y,
//@call         threadgroup_position_in_grid.z, thread_index_in_threadgroup,
//@call         simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <typename T, int C, int H, typename G>
METAL_FUNC void hyper_write(
    const device T* x,
    const device T* y,
    G g,
    const device T* w,
    float eps,
    device T* x_out,
    device T* z,
    threadgroup float* part,
    int i_stream,
    int i_row,
    int i_thread,
    int i_simd,
    int lane) {
  const int at = (i_row * C + i_stream) * H;
  const float b_g = static_cast<float>(g[i_row * C + i_stream]);
  float sum[(H + 255) / 256];
  for (int j = 0; j < (H + 255) / 256; ++j) {
    const int i = i_thread + 256 * j;
    sum[j] = 0.0f;
    if (i < H) {
      const float spread = rounded<T>(separate_product(b_g, static_cast<float>(y[i_row * H + i])));
      sum[j] = rounded<T>(static_cast<float>(x[at + i]) + spread);
      x_out[at + i] = static_cast<T>(sum[j]);
    }
  }
  hyper_normalise<T, H>(sum, w + i_stream * H, eps, part, z + at, i_thread, i_simd, lane);
}
