// The residual of C streams, each H wide: norm, gated mean, write-back.
//
// A read is: z = norm(x); low = D z / C, its first R values through silu and 4
// more for the inject (rows_dense with SILU = R, DIV = C, the matrix padded to
// R + 8 rows); up = U low; hyper_read. hyper_write adds a block's output and
// makes the next read's z in the same launch.

// RMS norm of one stream: rounds after the norm and after the weight.
template <typename T, int H, typename Z>
METAL_FUNC void hyper_normalise(
    const device T* x,
    const device T* w,
    float square,
    float eps,
    threadgroup float* part,
    Z z,
    int i_thread,
    int i_simd,
    int lane) {
  const float total = group_sum<8>(square, part, i_simd, lane);
  const float inverse = metal::rsqrt(total / static_cast<float>(H) + eps);
  for (int i = i_thread; i < H; i += 256) {
    const float unit = rounded<T>(static_cast<float>(x[i]) * inverse);
    z[i] = static_cast<T>(unit * static_cast<float>(w[i]));
  }
}

// hyper_norm -- z = grouped RMS norm of the streams.
//   arrays    x z [rows, C*H], w [C*H] in T (one-centred)
//   grid      (256, C, rows), threadgroup (256, 1, 1): one stream of one row
//   memory    x twice (the second time from cache), z once: 20 KB each a row
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
  float square = 0.0f;
  for (int i = i_thread; i < H; i += 256) {
    const float b_x = static_cast<float>(x[at + i]);
    square = metal::fma(b_x, b_x, square);
  }
  hyper_normalise<T, H>(x + at, w + i_stream * H, square, eps, part, z + at, i_thread, i_simd, lane);
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
  float square = 0.0f;
  for (int i = i_thread; i < H; i += 256) {
    const float spread = rounded<T>(separate_product(b_g, static_cast<float>(y[i_row * H + i])));
    const float sum = rounded<T>(static_cast<float>(x[at + i]) + spread);
    x_out[at + i] = static_cast<T>(sum);
    square = metal::fma(sum, sum, square);
  }
  // A thread reads back only what it wrote itself.
  hyper_normalise<T, H>(x_out + at, w + i_stream * H, square, eps, part, z + at, i_thread, i_simd, lane);
}

// Gated mean of one column's streams: u = 1/C sum_s sigmoid(up[s]) z[s].
template <typename T, int C, int H>
METAL_FUNC float hyper_mix(const device T* z, const device T* up, int at) {
  float sum = 0.0f;
  for (int s = 0; s < C; ++s) {
    const float gate = rounded<T>(sigmoid_f(static_cast<float>(up[at + s * H])));
    const float part = rounded<T>(separate_product(gate, static_cast<float>(z[at + s * H])));
    sum = rounded<T>(sum + part);
  }
  return sum / static_cast<float>(C);
}

// hyper_read -- the input of a block and the scale of its write-back.
//   arrays    z up [rows, C*H], low [rows, LOW], u [rows, H], g [rows, C] in T;
//             low[LOW - 8 .. LOW - 8 + C - 1] = B z / C
//   grid      (H, rows, 1), threadgroup (256, 1, 1)
//   memory    z and up once: 41 KB a row at 4 x 2560
//   numerics  rounds after sigmoid, product and each sum, streams in order; g = 2 sigmoid exact
//   law       model.md 6, 13
//@kernel   hyper_read
//@template T:type C:int H:int LOW:int
//@in       z T rows, C*H
//@in       up T rows, C*H
//@in       low T rows, LOW
//@out      u T rows, H
//@out      g T rows, C
//@grid     H, rows, 1
//@group    256, 1, 1
//@call     hyper_read<T, C, H, LOW>(z, up, low, u, g, thread_position_in_grid.x, thread_position_in_grid.y);
template <typename T, int C, int H, int LOW>
METAL_FUNC void hyper_read(
    const device T* z,
    const device T* up,
    const device T* low,
    device T* u,
    device T* g,
    int i,
    int i_row) {
  if (i < H) {
    u[i_row * H + i] = static_cast<T>(hyper_mix<T, C, H>(z, up, i_row * C * H + i));
  }
  if (i < C) {
    const float inject = static_cast<float>(low[i_row * LOW + LOW - 8 + i]);
    g[i_row * C + i] = static_cast<T>(2.0f * rounded<T>(sigmoid_f(inject)));
  }
}

// hyper_mean -- the read of a mixer: no write-back follows.
//   arrays    z up [rows, C*H], u [rows, H] in T
//   grid      as hyper_read
//   memory    z and up once
//   numerics  as hyper_read
//   law       model.md 6
//@kernel   hyper_mean
//@template T:type C:int H:int
//@in       z T rows, C*H
//@in       up T rows, C*H
//@out      u T rows, H
//@grid     H, rows, 1
//@group    256, 1, 1
//@call     hyper_mean<T, C, H>(z, up, u, thread_position_in_grid.x, thread_position_in_grid.y);
template <typename T, int C, int H>
METAL_FUNC void hyper_mean(const device T* z, const device T* up, device T* u, int i, int i_row) {
  if (i < H) {
    u[i_row * H + i] = static_cast<T>(hyper_mix<T, C, H>(z, up, i_row * C * H + i));
  }
}
