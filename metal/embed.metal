// Rows of the token table. W is the type of dense rows, scales and biases, T that of the values.

// embed_affine -- row id[r] of an affine table, COPIES times side by side.
//   arrays    id [rows], below vocab; one below 0, a draw from a row of NaN, reads row 0; w scales biases as in rows.metal; y [rows, COPIES*IN]
//   grid      (IN, rows, 1), threadgroup (256, 1, 1): a thread a value
//   memory    a row of codes, one of values: 12 KB at 2,560 columns, 8 bits, 4 copies in bf16
//   numerics  scale * code and the sum with the bias each round to T: the bits of mx.dequantize on a CPU
//   law       model.md 3
//@kernel   embed_affine
//@template T:type W:type IN:int BITS:int GROUP:int COPIES:int
//@in       id int32 rows
//@in       w uint32 vocab, IN*BITS/32
//@in       scales W vocab, IN/GROUP
//@in       biases W vocab, IN/GROUP
//@out      y T rows, COPIES*IN
//@grid     IN, rows, 1
//@group    256, 1, 1
//@call     embed_affine<T, W, IN, BITS, GROUP, COPIES>(id, w, scales, biases, y,
//@call         thread_position_in_grid.x, thread_position_in_grid.y);
template <typename T, typename W, int IN, int BITS, int GROUP, int COPIES, typename I>
METAL_FUNC void embed_affine(
    I id,
    const device uint* w,
    const device W* scales,
    const device W* biases,
    device T* y,
    int i,
    int i_row) {
  if (i >= IN) {
    return;
  }
  const long row = metal::max(id[i_row], 0);
  const device uint* words = w + row * (IN / 32 * BITS);
  const int bit = i * BITS;
  const int shift = bit % 32;
  uint code = words[bit / 32] >> shift;
  if (shift + BITS > 32) {
    code |= words[bit / 32 + 1] << (32 - shift);
  }
  const float value = static_cast<float>(code & ((1u << BITS) - 1u));
  const long i_group = row * (IN / GROUP) + i / GROUP;
  const float product = rounded<T>(separate_product(static_cast<float>(scales[i_group]), value));
  const T v = static_cast<T>(product + static_cast<float>(biases[i_group]));
  for (int copy = 0; copy < COPIES; ++copy) {
    y[(i_row * COPIES + copy) * IN + i] = v;
  }
}

// embed_dense -- as embed_affine with a table in W.
//@kernel   embed_dense
//@template T:type W:type IN:int COPIES:int
//@in       id int32 rows
//@in       w W vocab, IN
//@out      y T rows, COPIES*IN
//@grid     IN, rows, 1
//@group    256, 1, 1
//@call     embed_dense<T, W, IN, COPIES>(id, w, y, thread_position_in_grid.x, thread_position_in_grid.y);
template <typename T, typename W, int IN, int COPIES, typename I>
METAL_FUNC void embed_dense(I id, const device W* w, device T* y, int i, int i_row) {
  if (i >= IN) {
    return;
  }
  const T v = static_cast<T>(static_cast<float>(w[static_cast<long>(metal::max(id[i_row], 0)) * IN + i]));
  for (int copy = 0; copy < COPIES; ++copy) {
    y[(i_row * COPIES + copy) * IN + i] = v;
  }
}
