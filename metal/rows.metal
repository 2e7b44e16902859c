// A weight matrix times 1..8 rows: each weight is read once for all rows.
// The file is over 400 lines: ten kernels share one inner product.
//
// LANES lanes share an output, and SPLIT simdgroups; each takes every
// LANES*SPLIT-th chunk of the input (32 codes of an affine matrix, 8 dense
// values) and keeps OUTS outputs at a time, so that a row's values are loaded
// once for OUTS of them. The order of a sum depends on IN, LANES and SPLIT
// only, never on ROWS: row r has the bits of a 1-row launch.
//
// Affine: code k of a row stands at bit k*BITS, low bits first; weight =
// scale*code + bias of its group. W is the type of dense weights, scales and
// biases, T that of rows.

// N words as far as possible in 16-byte loads; the address is a multiple of
// the largest power of two that divides 4*N bytes.
template <int N>
METAL_FUNC void rows_words(const device uint* p, thread uint (&words)[N]) {
  if (N % 4 == 0) {
    #pragma unroll
    for (int i = 0; i + 4 <= N; i += 4) {
      const uint4 v = *(const device uint4*)(p + i);
      words[i] = v.x;
      words[i + 1] = v.y;
      words[i + 2] = v.z;
      words[i + 3] = v.w;
    }
  } else if (N % 2 == 0) {
    #pragma unroll
    for (int i = 0; i + 2 <= N; i += 2) {
      const uint2 v = *(const device uint2*)(p + i);
      words[i] = v.x;
      words[i + 1] = v.y;
    }
  } else {
    #pragma unroll
    for (int i = 0; i < N; ++i) {
      words[i] = p[i];
    }
  }
}

// The BITS-wide code at bit `shift` of a word, exactly: the code becomes the
// low bits of a float's mantissa; shift + BITS is at most 23.
template <int BITS>
METAL_FUNC float rows_code(uint word, int shift) {
  const float unit = 1.0f / static_cast<float>(1u << shift);
  const uint bits = (word & (((1u << BITS) - 1u) << shift)) | 0x4b000000u;
  return metal::fma(as_type<float>(bits), unit, -8388608.0f * unit);
}

// One affine matrix; S is the type of the pointers to scales and biases.
template <int BITS, int GROUP, int IN, typename S>
struct RowsAffine {
  enum { chunk = 32, ahead = 2 };
  const device uint* w;
  S scales;
  S biases;

  struct Raw {
    uint words[BITS];
    float scale;
    float bias;
  };

  METAL_FUNC void fetch(int i_out, int i_chunk, thread Raw& raw) const {
    rows_words<BITS>(w + (i_out * (IN / 32) + i_chunk) * BITS, raw.words);
    const int i_group = i_out * (IN / GROUP) + i_chunk / (GROUP / 32);
    raw.scale = static_cast<float>(scales[i_group]);
    raw.bias = static_cast<float>(biases[i_group]);
  }

  METAL_FUNC void unpack8(thread const Raw& raw, int sub, thread float (&v)[8]) const {
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int bit = (8 * sub + i) * BITS;
      const int shift = bit % 32;
      const uint word = raw.words[bit / 32];
      float code;
      if (shift + BITS <= 23) {
        code = rows_code<BITS>(word, shift);
      } else if (shift + BITS <= 32) {
        code = rows_code<BITS>(word >> 16, shift - 16);
      } else {
        code = rows_code<BITS>((word >> shift) | (raw.words[bit / 32 + 1] << (32 - shift)), 0);
      }
      v[i] = metal::fma(raw.scale, code, raw.bias);
    }
  }
};

template <typename W, int IN>
struct RowsDense {
  enum { chunk = 8, ahead = 4 };
  const device W* w;

  struct Raw {
    uint words[2 * sizeof(W)];
  };

  METAL_FUNC void fetch(int i_out, int i_chunk, thread Raw& raw) const {
    rows_words<2 * sizeof(W)>((const device uint*)(w + i_out * IN + 8 * i_chunk), raw.words);
  }

  METAL_FUNC void unpack8(thread const Raw& raw, int, thread float (&v)[8]) const {
    unpacked8<W>(raw.words, v);
  }
};

// acc[o][r] = weights of output first + o*STRIDE, times row `row[r]` of x, whose
// rows are X apart; outputs past the last one repeat it, rows past n_rows stay 0.
// The sum over this simdgroup's chunks, `i_part` of SPLIT.
template <int ROWS, int IN, int OUT, int X, int LANES, int SPLIT, int OUTS, int STRIDE, typename T, typename M>
METAL_FUNC void rows_dot(
    thread const M& m,
    const device T* x,
    thread const int (&row)[ROWS],
    int n_rows,
    int first,
    int i_part,
    int lane,
    thread float (&acc)[OUTS][ROWS]) {
  constexpr int chunks = IN / M::chunk;
  constexpr int stride = LANES * SPLIT;
  constexpr int ahead = OUTS >= 4 ? 1 : M::ahead;  // chunks loaded before the first is used
  #pragma unroll
  for (int o = 0; o < OUTS; ++o) {
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      acc[o][r] = 0.0f;
    }
  }
  for (int begin = lane % LANES + LANES * i_part; begin < chunks; begin += ahead * stride) {
    typename M::Raw raw[ahead][OUTS];
    #pragma unroll
    for (int a = 0; a < ahead; ++a) {
      if (begin + a * stride < chunks) {
        #pragma unroll
        for (int o = 0; o < OUTS; ++o) {
          m.fetch(metal::min(first + o * STRIDE, OUT - 1), begin + a * stride, raw[a][o]);
        }
      }
    }
    #pragma unroll
    for (int a = 0; a < ahead; ++a) {
      const int i_chunk = begin + a * stride;
      #pragma unroll
      for (int sub = 0; sub < M::chunk / 8; ++sub) {
        if (i_chunk >= chunks) {
          continue;
        }
        float b_x[ROWS][8];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          if (r < n_rows) {
            load8(x + row[r] * X + i_chunk * M::chunk + 8 * sub, b_x[r]);
          }
        }
        #pragma unroll
        for (int o = 0; o < OUTS; ++o) {
          float b_w[8];
          m.unpack8(raw[a][o], sub, b_w);
          #pragma unroll
          for (int r = 0; r < ROWS; ++r) {
            if (r < n_rows) {
              #pragma unroll
              for (int i = 0; i < 8; ++i) {
                acc[o][r] = metal::fma(b_w[i], b_x[r][i], acc[o][r]);
              }
            }
          }
        }
      }
    }
  }
  #pragma unroll
  for (int o = 0; o < OUTS; ++o) {
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      #pragma unroll
      for (int mask = 1; mask < LANES; mask <<= 1) {
        acc[o][r] += simd_shuffle_xor(acc[o][r], static_cast<ushort>(mask));
      }
    }
  }
}

// First of the OUTS outputs of this lane.
template <int LANES, int OUTS>
METAL_FUNC int rows_first(int i_simd, int lane) {
  return (i_simd * (32 / LANES) + lane / LANES) * OUTS;
}

// All rows of one matrix; outputs below SILU become silu(y / DIV), the others y / DIV.
// A threadgroup has four simdgroups; `part` [4 * 32/LANES * OUTS * ROWS] joins those that share outputs.
template <int ROWS, int IN, int OUT, int LANES, int SPLIT, int OUTS, int SILU, int DIV, typename T, typename M>
METAL_FUNC void rows_plain(
    thread const M& m,
    const device T* x,
    device T* y,
    threadgroup float* part,
    int i_simd,
    int i_local,
    int lane) {
  int row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    row[r] = r;
  }
  float acc[OUTS][ROWS];
  const int first = rows_first<LANES, OUTS>(i_simd / SPLIT, lane);
  rows_dot<ROWS, IN, OUT, IN, LANES, SPLIT, OUTS, 1>(m, x, row, ROWS, first, i_simd % SPLIT, lane, acc);
  if (SPLIT > 1) {
    constexpr int share = 32 / LANES * OUTS * ROWS;
    const int at = lane / LANES * OUTS * ROWS;
    if (lane % LANES == 0) {
      for (int o = 0; o < OUTS; ++o) {
        for (int r = 0; r < ROWS; ++r) {
          part[i_local * share + at + o * ROWS + r] = acc[o][r];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i_local % SPLIT == 0 && lane % LANES == 0) {
      for (int i = 1; i < SPLIT; ++i) {
        for (int o = 0; o < OUTS; ++o) {
          for (int r = 0; r < ROWS; ++r) {
            acc[o][r] += part[(i_local + i) * share + at + o * ROWS + r];
          }
        }
      }
    }
  }
  for (int o = 0; o < OUTS; ++o) {
    if (i_local % SPLIT == 0 && lane % LANES == 0 && first + o < OUT) {
      for (int r = 0; r < ROWS; ++r) {
        const float v = rounded<T>(rounded<T>(acc[o][r]) / static_cast<float>(DIV));
        y[r * OUT + first + o] = static_cast<T>(first + o < SILU ? silu_rounded<T>(v) : v);
      }
    }
  }
}

// silu(gate x) * (up x) for all rows of two matrices of one shape.
template <int ROWS, int IN, int OUT, int LANES, int OUTS, typename T, typename M>
METAL_FUNC void rows_gate_up(
    thread const M& gate,
    thread const M& up,
    const device T* x,
    thread const int (&row)[ROWS],
    thread const int (&at)[ROWS],
    int n_rows,
    device T* y,
    int i_simd,
    int lane) {
  float b_gate[OUTS][ROWS];
  float b_up[OUTS][ROWS];
  const int first = rows_first<LANES, OUTS>(i_simd, lane);
  rows_dot<ROWS, IN, OUT, IN, LANES, 1, OUTS, 1>(gate, x, row, n_rows, first, 0, lane, b_gate);
  rows_dot<ROWS, IN, OUT, IN, LANES, 1, OUTS, 1>(up, x, row, n_rows, first, 0, lane, b_up);
#pragma unroll
  for (int o = 0; o < OUTS; ++o) {
    if (lane % LANES == 0 && first + o < OUT) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if (r < n_rows) {
          const float activated = silu_rounded<T>(rounded<T>(b_gate[o][r]));
          y[at[r] * OUT + first + o] = static_cast<T>(activated * rounded<T>(b_up[o][r]));
        }
      }
    }
  }
}

// u = 1/C sum_s sigmoid(up_s low) z_s, and the scale of the write-back. A row of
// `low` is R values for the product, then the inject's; LANES lanes a column.
template <int ROWS, int R, int H, int C, int LANES, typename T, typename M>
METAL_FUNC void rows_mix(
    thread const M& up,
    const device T* low,
    const device T* z,
    device T* u,
    device T* g,
    int i_simd,
    int lane) {
  constexpr int width = R + 8;
  int row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    row[r] = r;
  }
  float acc[C][ROWS];
  const int i = rows_first<LANES, 1>(i_simd, lane);
  rows_dot<ROWS, R, C * H, width, LANES, 1, C, H>(up, low, row, ROWS, i, 0, lane, acc);
  if (lane % LANES == 0 && i < H) {
    for (int r = 0; r < ROWS; ++r) {
      float sum = 0.0f;
      for (int s = 0; s < C; ++s) {
        const float gate = rounded<T>(sigmoid_f(rounded<T>(acc[s][r])));
        const float b_z = static_cast<float>(z[(r * C + s) * H + i]);
        sum = rounded<T>(sum + rounded<T>(separate_product(gate, b_z)));
      }
      u[r * H + i] = static_cast<T>(sum / static_cast<float>(C));
    }
  }
  const int i_inject = i_simd * 32 + lane;
  if (i_inject < ROWS * C) {
    const float inject = static_cast<float>(low[i_inject / C * width + R + i_inject % C]);
    g[i_inject] = static_cast<T>(2.0f * rounded<T>(sigmoid_f(inject)));
  }
}

// The run of equal experts that begins at i_slot of `order`: its pairs, and how
// many; 0 where the run began earlier. A pair is row * K + rank.
template <int ROWS, typename I, typename O>
METAL_FUNC int rows_run(I expert, O order, int n_slots, int i_slot, thread int (&pair)[ROWS]) {
  const int i_expert = expert[order[i_slot]];
  for (int r = 0; r < ROWS; ++r) {
    pair[r] = 0;
  }
  if (i_slot > 0 && expert[order[i_slot - 1]] == i_expert) {
    return 0;
  }
  int n = 0;
  for (int r = 0; r < ROWS; ++r) {
    if (n == r && i_slot + r < n_slots && expert[order[i_slot + r]] == i_expert) {
      pair[r] = order[i_slot + r];
      n = r + 1;
    }
  }
  return n;
}

// rows_affine -- quantised matrix times all rows.
//   arrays    x [ROWS,IN], y [ROWS,OUT] in T; w [OUT,IN*BITS/32] words; scales biases [OUT,IN/GROUP] in W
//   grid      (32, OUT*LANES/32/OUTS*SPLIT, 1), threadgroup (32, 4, 1); SPLIT divides 4
//   memory    the matrix once: OUT*IN*(BITS/8 + 4/GROUP) bytes; rows from cache
//   numerics  float, fma over codes in order, ascending lane tree, then parts; y, y/DIV and silu round
//   law       MLX affine quantisation (model.md 3.2)
//@kernel   rows_affine
//@template T:type W:type ROWS:int IN:int OUT:int BITS:int GROUP:int LANES:int SPLIT:int OUTS:int SILU:int DIV:int
//@in       x T ROWS, IN
//@in       w uint32 OUT, IN*BITS/32
//@in       scales W OUT, IN/GROUP
//@in       biases W OUT, IN/GROUP
//@out      y T ROWS, OUT
//@shared   float part[4 * 32 / LANES * OUTS * ROWS]
//@grid     32, OUT/(32/LANES*OUTS)*SPLIT, 1
//@group    32, 4, 1
//@call     rows_affine<T, W, ROWS, IN, OUT, BITS, GROUP, LANES, SPLIT, OUTS, SILU, DIV>(x, w, scales, biases, y,
//@call         part, thread_position_in_grid.y, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <typename T, typename W, int ROWS, int IN, int OUT, int BITS, int GROUP, int LANES, int SPLIT, int OUTS, int SILU, int DIV, typename S>
METAL_FUNC void rows_affine(
    const device T* x,
    const device uint* w,
    S scales,
    S biases,
    device T* y,
    threadgroup float* part,
    int i_simd,
    int i_local,
    int lane) {
  const RowsAffine<BITS, GROUP, IN, S> m = {w, scales, biases};
  rows_plain<ROWS, IN, OUT, LANES, SPLIT, OUTS, SILU, DIV>(m, x, y, part, i_simd, i_local, lane);
}

// rows_dense -- as rows_affine with a matrix in W.
//   memory    OUT*IN*sizeof(W)
//@kernel   rows_dense
//@template T:type W:type ROWS:int IN:int OUT:int LANES:int SPLIT:int OUTS:int SILU:int DIV:int
//@in       x T ROWS, IN
//@in       w W OUT, IN
//@out      y T ROWS, OUT
//@shared   float part[4 * 32 / LANES * OUTS * ROWS]
//@grid     32, OUT/(32/LANES*OUTS)*SPLIT, 1
//@group    32, 4, 1
//@call     rows_dense<T, W, ROWS, IN, OUT, LANES, SPLIT, OUTS, SILU, DIV>(x, w, y, part,
//@call         thread_position_in_grid.y, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
template <typename T, typename W, int ROWS, int IN, int OUT, int LANES, int SPLIT, int OUTS, int SILU, int DIV>
METAL_FUNC void rows_dense(
    const device T* x,
    const device W* w,
    device T* y,
    threadgroup float* part,
    int i_simd,
    int i_local,
    int lane) {
  const RowsDense<W, IN> m = {w};
  rows_plain<ROWS, IN, OUT, LANES, SPLIT, OUTS, SILU, DIV>(m, x, y, part, i_simd, i_local, lane);
}

// rows_mix_affine -- the read of C streams: the gate's product, the gated mean, the inject.
//   arrays    low [ROWS,R+8] (R values, then C of 8 of the inject's), z [ROWS,C*H], u [ROWS,H], g [ROWS,C] in T;
//             w [C*H,R*BITS/32] words; scales biases [C*H,R/GROUP] in W
//   grid      (32, H*LANES/32, 1), threadgroup (32, 4, 1): LANES lanes a column, C outputs each
//   memory    the matrix once, z once: 6.6 MB dense at 4 x 2560 x 320
//   numerics  the product as rows_affine; rounds after sigmoid, product and each sum, streams in order; g = 2 sigmoid exact
//   law       model.md 6, 13
//@kernel   rows_mix_affine
//@template T:type W:type ROWS:int R:int H:int C:int BITS:int GROUP:int LANES:int
//@in       low T ROWS, R+8
//@in       z T ROWS, C*H
//@in       w uint32 C*H, R*BITS/32
//@in       scales W C*H, R/GROUP
//@in       biases W C*H, R/GROUP
//@out      u T ROWS, H
//@out      g T ROWS, C
//@grid     32, H/(32/LANES), 1
//@group    32, 4, 1
//@call     rows_mix_affine<T, W, ROWS, R, H, C, BITS, GROUP, LANES>(low, z, w, scales, biases, u, g,
//@call         thread_position_in_grid.y, thread_index_in_simdgroup);
template <typename T, typename W, int ROWS, int R, int H, int C, int BITS, int GROUP, int LANES, typename S>
METAL_FUNC void rows_mix_affine(
    const device T* low,
    const device T* z,
    const device uint* w,
    S scales,
    S biases,
    device T* u,
    device T* g,
    int i_simd,
    int lane) {
  const RowsAffine<BITS, GROUP, R, S> up = {w, scales, biases};
  rows_mix<ROWS, R, H, C, LANES>(up, low, z, u, g, i_simd, lane);
}

// rows_mix_dense -- as rows_mix_affine with a matrix in W.
//@kernel   rows_mix_dense
//@template T:type W:type ROWS:int R:int H:int C:int LANES:int
//@in       low T ROWS, R+8
//@in       z T ROWS, C*H
//@in       w W C*H, R
//@out      u T ROWS, H
//@out      g T ROWS, C
//@grid     32, H/(32/LANES), 1
//@group    32, 4, 1
//@call     rows_mix_dense<T, W, ROWS, R, H, C, LANES>(low, z, w, u, g, thread_position_in_grid.y, thread_index_in_simdgroup);
template <typename T, typename W, int ROWS, int R, int H, int C, int LANES>
METAL_FUNC void rows_mix_dense(
    const device T* low,
    const device T* z,
    const device W* w,
    device T* u,
    device T* g,
    int i_simd,
    int lane) {
  const RowsDense<W, R> up = {w};
  rows_mix<ROWS, R, H, C, LANES>(up, low, z, u, g, i_simd, lane);
}

// rows_glu_affine -- silu(gate x) * (up x), both products and the gate in one launch.
//   arrays    as rows_affine, twice; y [ROWS,OUT]
//   grid      as rows_affine
//   memory    both matrices once
//   numerics  each product rounds, then sigmoid, silu, product
//   law       model.md 9
//@kernel   rows_glu_affine
//@template T:type W:type ROWS:int IN:int OUT:int BITS:int GROUP:int LANES:int OUTS:int
//@in       x T ROWS, IN
//@in       gate_w uint32 OUT, IN*BITS/32
//@in       gate_s W OUT, IN/GROUP
//@in       gate_b W OUT, IN/GROUP
//@in       up_w uint32 OUT, IN*BITS/32
//@in       up_s W OUT, IN/GROUP
//@in       up_b W OUT, IN/GROUP
//@out      y T ROWS, OUT
//@grid     32, OUT/(32/LANES*OUTS), 1
//@group    32, 4, 1
//@call     rows_glu_affine<T, W, ROWS, IN, OUT, BITS, GROUP, LANES, OUTS>(x, gate_w, gate_s, gate_b,
//@call         up_w, up_s, up_b, y, thread_position_in_grid.y, thread_index_in_simdgroup);
template <typename T, typename W, int ROWS, int IN, int OUT, int BITS, int GROUP, int LANES, int OUTS>
METAL_FUNC void rows_glu_affine(
    const device T* x,
    const device uint* gate_w,
    const device W* gate_s,
    const device W* gate_b,
    const device uint* up_w,
    const device W* up_s,
    const device W* up_b,
    device T* y,
    int i_simd,
    int lane) {
  int row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    row[r] = r;
  }
  const RowsAffine<BITS, GROUP, IN, const device W*> gate = {gate_w, gate_s, gate_b};
  const RowsAffine<BITS, GROUP, IN, const device W*> up = {up_w, up_s, up_b};
  rows_gate_up<ROWS, IN, OUT, LANES, OUTS>(gate, up, x, row, row, ROWS, y, i_simd, lane);
}

// rows_glu_dense -- as rows_glu_affine with matrices in T.
//@kernel   rows_glu_dense
//@template T:type W:type ROWS:int IN:int OUT:int LANES:int OUTS:int
//@in       x T ROWS, IN
//@in       gate_w W OUT, IN
//@in       up_w W OUT, IN
//@out      y T ROWS, OUT
//@grid     32, OUT/(32/LANES*OUTS), 1
//@group    32, 4, 1
//@call     rows_glu_dense<T, W, ROWS, IN, OUT, LANES, OUTS>(x, gate_w, up_w, y,
//@call         thread_position_in_grid.y, thread_index_in_simdgroup);
template <typename T, typename W, int ROWS, int IN, int OUT, int LANES, int OUTS>
METAL_FUNC void rows_glu_dense(
    const device T* x,
    const device W* gate_w,
    const device W* up_w,
    device T* y,
    int i_simd,
    int lane) {
  int row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    row[r] = r;
  }
  const RowsDense<W, IN> gate = {gate_w};
  const RowsDense<W, IN> up = {up_w};
  rows_gate_up<ROWS, IN, OUT, LANES, OUTS>(gate, up, x, row, row, ROWS, y, i_simd, lane);
}

// rows_gather_glu_affine -- rows_glu_affine with the expert of each (row, rank) pair.
//   arrays    x [ROWS,IN]; expert [ROWS,K]; order [ROWS*K]: pairs sorted by expert; y [ROWS*K,OUT]
//   grid      (32, OUT*LANES/32/OUTS, ROWS*K): the first slot of a run of one expert does the run
//   memory    each chosen expert once, however many rows chose it
//   numerics  as rows_glu_affine
//   law       model.md 9
//@kernel   rows_gather_glu_affine
//@template T:type W:type ROWS:int K:int IN:int OUT:int BITS:int GROUP:int LANES:int OUTS:int
//@in       x T ROWS, IN
//@in       expert int32 ROWS, K
//@in       order int32 ROWS*K
//@in       gate_w uint32 experts, OUT, IN*BITS/32
//@in       gate_s W experts, OUT, IN/GROUP
//@in       gate_b W experts, OUT, IN/GROUP
//@in       up_w uint32 experts, OUT, IN*BITS/32
//@in       up_s W experts, OUT, IN/GROUP
//@in       up_b W experts, OUT, IN/GROUP
//@out      y T ROWS*K, OUT
//@grid     32, OUT/(32/LANES*OUTS), ROWS*K
//@group    32, 4, 1
//@call     rows_gather_glu_affine<T, W, ROWS, K, IN, OUT, BITS, GROUP, LANES, OUTS>(x, expert, order,
//@call         gate_w, gate_s, gate_b, up_w, up_s, up_b, y, thread_position_in_grid.y,
//@call         thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, typename W, int ROWS, int K, int IN, int OUT, int BITS, int GROUP, int LANES, int OUTS, typename I, typename O>
METAL_FUNC void rows_gather_glu_affine(
    const device T* x,
    I expert,
    O order,
    const device uint* gate_w,
    const device W* gate_s,
    const device W* gate_b,
    const device uint* up_w,
    const device W* up_s,
    const device W* up_b,
    device T* y,
    int i_simd,
    int i_slot,
    int lane) {
  int pair[ROWS];
  const int n = rows_run<ROWS>(expert, order, ROWS * K, i_slot, pair);
  if (n == 0) {
    return;
  }
  int row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    row[r] = pair[r] / K;
  }
  const long i_expert = expert[pair[0]];
  const long words = i_expert * OUT * (IN / 32 * BITS);
  const long groups = i_expert * OUT * (IN / GROUP);
  const RowsAffine<BITS, GROUP, IN, const device W*> gate = {gate_w + words, gate_s + groups, gate_b + groups};
  const RowsAffine<BITS, GROUP, IN, const device W*> up = {up_w + words, up_s + groups, up_b + groups};
  rows_gate_up<ROWS, IN, OUT, LANES, OUTS>(gate, up, x, row, pair, n, y, i_simd, lane);
}

// rows_gather_glu_dense -- as rows_gather_glu_affine with matrices in T.
//@kernel   rows_gather_glu_dense
//@template T:type W:type ROWS:int K:int IN:int OUT:int LANES:int OUTS:int
//@in       x T ROWS, IN
//@in       expert int32 ROWS, K
//@in       order int32 ROWS*K
//@in       gate_w W experts, OUT, IN
//@in       up_w W experts, OUT, IN
//@out      y T ROWS*K, OUT
//@grid     32, OUT/(32/LANES*OUTS), ROWS*K
//@group    32, 4, 1
//@call     rows_gather_glu_dense<T, W, ROWS, K, IN, OUT, LANES, OUTS>(x, expert, order, gate_w, up_w, y,
//@call         thread_position_in_grid.y, thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, typename W, int ROWS, int K, int IN, int OUT, int LANES, int OUTS, typename I, typename O>
METAL_FUNC void rows_gather_glu_dense(
    const device T* x,
    I expert,
    O order,
    const device W* gate_w,
    const device W* up_w,
    device T* y,
    int i_simd,
    int i_slot,
    int lane) {
  int pair[ROWS];
  const int n = rows_run<ROWS>(expert, order, ROWS * K, i_slot, pair);
  if (n == 0) {
    return;
  }
  int row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    row[r] = pair[r] / K;
  }
  const long at = static_cast<long>(expert[pair[0]]) * (OUT * IN);
  const RowsDense<W, IN> gate = {gate_w + at};
  const RowsDense<W, IN> up = {up_w + at};
  rows_gate_up<ROWS, IN, OUT, LANES, OUTS>(gate, up, x, row, pair, n, y, i_simd, lane);
}

// The product of each pair with its expert, times its router weight.
template <int ROWS, int IN, int OUT, int LANES, int OUTS, typename T, typename M, typename W>
METAL_FUNC void rows_weighted(
    thread const M& m,
    const device T* x,
    W weight,
    thread const int (&pair)[ROWS],
    int n,
    device T* y,
    int i_simd,
    int lane) {
  float acc[OUTS][ROWS];
  const int first = rows_first<LANES, OUTS>(i_simd, lane);
  rows_dot<ROWS, IN, OUT, IN, LANES, 1, OUTS, 1>(m, x, pair, n, first, 0, lane, acc);
#pragma unroll
  for (int o = 0; o < OUTS; ++o) {
    if (lane % LANES == 0 && first + o < OUT) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if (r < n) {
          y[pair[r] * OUT + first + o] =
              static_cast<T>(rounded<T>(acc[o][r]) * static_cast<float>(weight[pair[r]]));
        }
      }
    }
  }
}

// rows_gather_affine -- each pair's row times its expert, times its router weight.
//   arrays    x y [ROWS*K, ...] by pair; weight [ROWS,K] in T; the rest as rows_gather_glu_affine
//   grid      as rows_gather_glu_affine
//   memory    each chosen expert once
//   numerics  the product rounds, then the weighted product
//   law       model.md 9
//@kernel   rows_gather_affine
//@template T:type W:type ROWS:int K:int IN:int OUT:int BITS:int GROUP:int LANES:int OUTS:int
//@in       x T ROWS*K, IN
//@in       expert int32 ROWS, K
//@in       order int32 ROWS*K
//@in       weight T ROWS, K
//@in       w uint32 experts, OUT, IN*BITS/32
//@in       scales W experts, OUT, IN/GROUP
//@in       biases W experts, OUT, IN/GROUP
//@out      y T ROWS*K, OUT
//@grid     32, OUT/(32/LANES*OUTS), ROWS*K
//@group    32, 4, 1
//@call     rows_gather_affine<T, W, ROWS, K, IN, OUT, BITS, GROUP, LANES, OUTS>(x, expert, order, weight,
//@call         w, scales, biases, y, thread_position_in_grid.y, thread_position_in_grid.z,
//@call         thread_index_in_simdgroup);
template <typename T, typename W, int ROWS, int K, int IN, int OUT, int BITS, int GROUP, int LANES, int OUTS, typename I, typename O, typename P>
METAL_FUNC void rows_gather_affine(
    const device T* x,
    I expert,
    O order,
    P weight,
    const device uint* w,
    const device W* scales,
    const device W* biases,
    device T* y,
    int i_simd,
    int i_slot,
    int lane) {
  int pair[ROWS];
  const int n = rows_run<ROWS>(expert, order, ROWS * K, i_slot, pair);
  if (n == 0) {
    return;
  }
  const long i_expert = expert[pair[0]];
  const long groups = i_expert * OUT * (IN / GROUP);
  const RowsAffine<BITS, GROUP, IN, const device W*> m = {
      w + i_expert * OUT * (IN / 32 * BITS), scales + groups, biases + groups};
  rows_weighted<ROWS, IN, OUT, LANES, OUTS>(m, x, weight, pair, n, y, i_simd, lane);
}

// rows_gather_dense -- as rows_gather_affine with matrices in T.
//@kernel   rows_gather_dense
//@template T:type W:type ROWS:int K:int IN:int OUT:int LANES:int OUTS:int
//@in       x T ROWS*K, IN
//@in       expert int32 ROWS, K
//@in       order int32 ROWS*K
//@in       weight T ROWS, K
//@in       w W experts, OUT, IN
//@out      y T ROWS*K, OUT
//@grid     32, OUT/(32/LANES*OUTS), ROWS*K
//@group    32, 4, 1
//@call     rows_gather_dense<T, W, ROWS, K, IN, OUT, LANES, OUTS>(x, expert, order, weight, w, y,
//@call         thread_position_in_grid.y, thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, typename W, int ROWS, int K, int IN, int OUT, int LANES, int OUTS, typename I, typename O, typename P>
METAL_FUNC void rows_gather_dense(
    const device T* x,
    I expert,
    O order,
    P weight,
    const device W* w,
    device T* y,
    int i_simd,
    int i_slot,
    int lane) {
  int pair[ROWS];
  const int n = rows_run<ROWS>(expert, order, ROWS * K, i_slot, pair);
  if (n == 0) {
    return;
  }
  const RowsDense<W, IN> m = {w + static_cast<long>(expert[pair[0]]) * (OUT * IN)};
  rows_weighted<ROWS, IN, OUT, LANES, OUTS>(m, x, weight, pair, n, y, i_simd, lane);
}
