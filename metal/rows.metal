// A weight matrix times 1..8 rows: each weight is read once for all rows.
//
// LANES lanes share an output; each takes every LANES-th chunk of the input
// (32 codes of an affine matrix, 8 dense values) and keeps OUTS outputs at a
// time, so that a row's values are loaded once for OUTS of them. The order of a
// sum depends on IN and LANES only, never on ROWS: row r has the bits of a
// 1-row launch.
//
// Affine: code k of a row stands at bit k*BITS, low bits first; weight =
// scale*code + bias of its group.
//
// The file is over 400 lines: eight kernels share one inner product.

// One affine matrix. `S` is the type of the pointers to scales and biases, both
// in the model's type.
template <int BITS, int GROUP, int IN, typename S>
struct RowsAffine {
  enum { chunk = 32 };
  const device uint* w;
  S scales;
  S biases;

  struct Raw {
    uint words[BITS];
    float scale;
    float bias;
  };

  METAL_FUNC void fetch(int i_out, int i_chunk, thread Raw& raw) const {
    const device uint* p = w + (i_out * (IN / 32) + i_chunk) * BITS;
    for (int i = 0; i < BITS; ++i) {
      raw.words[i] = p[i];
    }
    const int i_group = i_out * (IN / GROUP) + i_chunk / (GROUP / 32);
    raw.scale = static_cast<float>(scales[i_group]);
    raw.bias = static_cast<float>(biases[i_group]);
  }

  METAL_FUNC void unpack8(thread const Raw& raw, int sub, thread float (&v)[8]) const {
    for (int i = 0; i < 8; ++i) {
      const int bit = (8 * sub + i) * BITS;
      const int shift = bit % 32;
      uint code = raw.words[bit / 32] >> shift;
      if (shift + BITS > 32) {
        code |= raw.words[bit / 32 + 1] << (32 - shift);
      }
      v[i] = metal::fma(raw.scale, static_cast<float>(code & ((1u << BITS) - 1u)), raw.bias);
    }
  }
};

template <typename T, int IN>
struct RowsDense {
  enum { chunk = 8 };
  const device T* w;

  struct Raw {
    float v[8];
  };

  METAL_FUNC void fetch(int i_out, int i_chunk, thread Raw& raw) const {
    load8(w + i_out * IN + 8 * i_chunk, raw.v);
  }

  METAL_FUNC void unpack8(thread const Raw& raw, int, thread float (&v)[8]) const {
    for (int i = 0; i < 8; ++i) {
      v[i] = raw.v[i];
    }
  }
};

// acc[o][r] = weights of output first + o * stride, times row `row[r]` of x;
// outputs past the last one repeat it, rows past n_rows stay 0.
template <int ROWS, int IN, int OUT, int LANES, int OUTS, typename T, typename M>
METAL_FUNC void rows_dot(
    thread const M& m,
    const device T* x,
    thread const int (&row)[ROWS],
    int n_rows,
    int first,
    int lane,
    thread float (&acc)[OUTS][ROWS]) {
  for (int o = 0; o < OUTS; ++o) {
    for (int r = 0; r < ROWS; ++r) {
      acc[o][r] = 0.0f;
    }
  }
  for (int i_chunk = lane % LANES; i_chunk < IN / M::chunk; i_chunk += LANES) {
    typename M::Raw raw[OUTS];
    for (int o = 0; o < OUTS; ++o) {
      m.fetch(metal::min(first + o, OUT - 1), i_chunk, raw[o]);
    }
    for (int sub = 0; sub < M::chunk / 8; ++sub) {
      float b_x[ROWS][8];
      for (int r = 0; r < ROWS; ++r) {
        if (r < n_rows) {
          load8(x + row[r] * IN + i_chunk * M::chunk + 8 * sub, b_x[r]);
        }
      }
      for (int o = 0; o < OUTS; ++o) {
        float b_w[8];
        m.unpack8(raw[o], sub, b_w);
        for (int r = 0; r < ROWS; ++r) {
          if (r < n_rows) {
            for (int i = 0; i < 8; ++i) {
              acc[o][r] = metal::fma(b_w[i], b_x[r][i], acc[o][r]);
            }
          }
        }
      }
    }
  }
  for (int o = 0; o < OUTS; ++o) {
    for (int r = 0; r < ROWS; ++r) {
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
template <int ROWS, int IN, int OUT, int LANES, int OUTS, int SILU, int DIV, typename T, typename M>
METAL_FUNC void rows_plain(thread const M& m, const device T* x, device T* y, int i_simd, int lane) {
  int row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    row[r] = r;
  }
  float acc[OUTS][ROWS];
  const int first = rows_first<LANES, OUTS>(i_simd, lane);
  rows_dot<ROWS, IN, OUT, LANES, OUTS>(m, x, row, ROWS, first, lane, acc);
  for (int o = 0; o < OUTS; ++o) {
    if (lane % LANES == 0 && first + o < OUT) {
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
  rows_dot<ROWS, IN, OUT, LANES, OUTS>(gate, x, row, n_rows, first, lane, b_gate);
  rows_dot<ROWS, IN, OUT, LANES, OUTS>(up, x, row, n_rows, first, lane, b_up);
  for (int o = 0; o < OUTS; ++o) {
    if (lane % LANES == 0 && first + o < OUT) {
      for (int r = 0; r < n_rows; ++r) {
        const float activated = silu_rounded<T>(rounded<T>(b_gate[o][r]));
        y[at[r] * OUT + first + o] = static_cast<T>(activated * rounded<T>(b_up[o][r]));
      }
    }
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
//   arrays    x [ROWS,IN], y [ROWS,OUT], scales biases [OUT,IN/GROUP] in T; w [OUT,IN*BITS/32] words
//   grid      (32, OUT*LANES/32/OUTS, 1), threadgroup (32, 4, 1)
//   memory    the matrix once: OUT*IN*(BITS/8 + 4/GROUP) bytes; rows from cache
//   numerics  float, fma over codes in order, ascending lane tree; y, y/DIV and silu round
//   law       MLX affine quantisation (model.md 3.2)
//@kernel   rows_affine
//@template T:type ROWS:int IN:int OUT:int BITS:int GROUP:int LANES:int OUTS:int SILU:int DIV:int
//@in       x T ROWS, IN
//@in       w uint32 OUT, IN*BITS/32
//@in       scales T OUT, IN/GROUP
//@in       biases T OUT, IN/GROUP
//@out      y T ROWS, OUT
//@grid     32, OUT/(32/LANES*OUTS), 1
//@group    32, 4, 1
//@call     rows_affine<T, ROWS, IN, OUT, BITS, GROUP, LANES, OUTS, SILU, DIV>(x, w, scales, biases, y,
//@call         thread_position_in_grid.y, thread_index_in_simdgroup);
template <typename T, int ROWS, int IN, int OUT, int BITS, int GROUP, int LANES, int OUTS, int SILU, int DIV, typename S>
METAL_FUNC void rows_affine(
    const device T* x,
    const device uint* w,
    S scales,
    S biases,
    device T* y,
    int i_simd,
    int lane) {
  const RowsAffine<BITS, GROUP, IN, S> m = {w, scales, biases};
  rows_plain<ROWS, IN, OUT, LANES, OUTS, SILU, DIV>(m, x, y, i_simd, lane);
}

// rows_dense -- as rows_affine with a matrix in T.
//   memory    OUT*IN*sizeof(T)
//@kernel   rows_dense
//@template T:type ROWS:int IN:int OUT:int LANES:int OUTS:int SILU:int DIV:int
//@in       x T ROWS, IN
//@in       w T OUT, IN
//@out      y T ROWS, OUT
//@grid     32, OUT/(32/LANES*OUTS), 1
//@group    32, 4, 1
//@call     rows_dense<T, ROWS, IN, OUT, LANES, OUTS, SILU, DIV>(x, w, y,
//@call         thread_position_in_grid.y, thread_index_in_simdgroup);
template <typename T, int ROWS, int IN, int OUT, int LANES, int OUTS, int SILU, int DIV>
METAL_FUNC void rows_dense(const device T* x, const device T* w, device T* y, int i_simd, int lane) {
  const RowsDense<T, IN> m = {w};
  rows_plain<ROWS, IN, OUT, LANES, OUTS, SILU, DIV>(m, x, y, i_simd, lane);
}

// rows_glu_affine -- silu(gate x) * (up x), both products and the gate in one launch.
//   arrays    as rows_affine, twice; y [ROWS,OUT]
//   grid      as rows_affine
//   memory    both matrices once
//   numerics  each product rounds, then sigmoid, silu, product
//   law       model.md 9
//@kernel   rows_glu_affine
//@template T:type ROWS:int IN:int OUT:int BITS:int GROUP:int LANES:int OUTS:int
//@in       x T ROWS, IN
//@in       gate_w uint32 OUT, IN*BITS/32
//@in       gate_s T OUT, IN/GROUP
//@in       gate_b T OUT, IN/GROUP
//@in       up_w uint32 OUT, IN*BITS/32
//@in       up_s T OUT, IN/GROUP
//@in       up_b T OUT, IN/GROUP
//@out      y T ROWS, OUT
//@grid     32, OUT/(32/LANES*OUTS), 1
//@group    32, 4, 1
//@call     rows_glu_affine<T, ROWS, IN, OUT, BITS, GROUP, LANES, OUTS>(x, gate_w, gate_s, gate_b,
//@call         up_w, up_s, up_b, y, thread_position_in_grid.y, thread_index_in_simdgroup);
template <typename T, int ROWS, int IN, int OUT, int BITS, int GROUP, int LANES, int OUTS>
METAL_FUNC void rows_glu_affine(
    const device T* x,
    const device uint* gate_w,
    const device T* gate_s,
    const device T* gate_b,
    const device uint* up_w,
    const device T* up_s,
    const device T* up_b,
    device T* y,
    int i_simd,
    int lane) {
  int row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    row[r] = r;
  }
  const RowsAffine<BITS, GROUP, IN, const device T*> gate = {gate_w, gate_s, gate_b};
  const RowsAffine<BITS, GROUP, IN, const device T*> up = {up_w, up_s, up_b};
  rows_gate_up<ROWS, IN, OUT, LANES, OUTS>(gate, up, x, row, row, ROWS, y, i_simd, lane);
}

// rows_glu_dense -- as rows_glu_affine with matrices in T.
//@kernel   rows_glu_dense
//@template T:type ROWS:int IN:int OUT:int LANES:int OUTS:int
//@in       x T ROWS, IN
//@in       gate_w T OUT, IN
//@in       up_w T OUT, IN
//@out      y T ROWS, OUT
//@grid     32, OUT/(32/LANES*OUTS), 1
//@group    32, 4, 1
//@call     rows_glu_dense<T, ROWS, IN, OUT, LANES, OUTS>(x, gate_w, up_w, y,
//@call         thread_position_in_grid.y, thread_index_in_simdgroup);
template <typename T, int ROWS, int IN, int OUT, int LANES, int OUTS>
METAL_FUNC void rows_glu_dense(
    const device T* x,
    const device T* gate_w,
    const device T* up_w,
    device T* y,
    int i_simd,
    int lane) {
  int row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    row[r] = r;
  }
  const RowsDense<T, IN> gate = {gate_w};
  const RowsDense<T, IN> up = {up_w};
  rows_gate_up<ROWS, IN, OUT, LANES, OUTS>(gate, up, x, row, row, ROWS, y, i_simd, lane);
}

// rows_gather_glu_affine -- rows_glu_affine with the expert of each (row, rank) pair.
//   arrays    x [ROWS,IN]; expert [ROWS,K]; order [ROWS*K]: pairs sorted by expert; y [ROWS*K,OUT]
//   grid      (32, OUT*LANES/32/OUTS, ROWS*K): the first slot of a run of one expert does the run
//   memory    each chosen expert once, however many rows chose it
//   numerics  as rows_glu_affine
//   law       model.md 9
//@kernel   rows_gather_glu_affine
//@template T:type ROWS:int K:int IN:int OUT:int BITS:int GROUP:int LANES:int OUTS:int
//@in       x T ROWS, IN
//@in       expert int32 ROWS, K
//@in       order int32 ROWS*K
//@in       gate_w uint32 experts, OUT, IN*BITS/32
//@in       gate_s T experts, OUT, IN/GROUP
//@in       gate_b T experts, OUT, IN/GROUP
//@in       up_w uint32 experts, OUT, IN*BITS/32
//@in       up_s T experts, OUT, IN/GROUP
//@in       up_b T experts, OUT, IN/GROUP
//@out      y T ROWS*K, OUT
//@grid     32, OUT/(32/LANES*OUTS), ROWS*K
//@group    32, 4, 1
//@call     rows_gather_glu_affine<T, ROWS, K, IN, OUT, BITS, GROUP, LANES, OUTS>(x, expert, order,
//@call         gate_w, gate_s, gate_b, up_w, up_s, up_b, y, thread_position_in_grid.y,
//@call         thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, int ROWS, int K, int IN, int OUT, int BITS, int GROUP, int LANES, int OUTS, typename I, typename O>
METAL_FUNC void rows_gather_glu_affine(
    const device T* x,
    I expert,
    O order,
    const device uint* gate_w,
    const device T* gate_s,
    const device T* gate_b,
    const device uint* up_w,
    const device T* up_s,
    const device T* up_b,
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
  const RowsAffine<BITS, GROUP, IN, const device T*> gate = {gate_w + words, gate_s + groups, gate_b + groups};
  const RowsAffine<BITS, GROUP, IN, const device T*> up = {up_w + words, up_s + groups, up_b + groups};
  rows_gate_up<ROWS, IN, OUT, LANES, OUTS>(gate, up, x, row, pair, n, y, i_simd, lane);
}

// rows_gather_glu_dense -- as rows_gather_glu_affine with matrices in T.
//@kernel   rows_gather_glu_dense
//@template T:type ROWS:int K:int IN:int OUT:int LANES:int OUTS:int
//@in       x T ROWS, IN
//@in       expert int32 ROWS, K
//@in       order int32 ROWS*K
//@in       gate_w T experts, OUT, IN
//@in       up_w T experts, OUT, IN
//@out      y T ROWS*K, OUT
//@grid     32, OUT/(32/LANES*OUTS), ROWS*K
//@group    32, 4, 1
//@call     rows_gather_glu_dense<T, ROWS, K, IN, OUT, LANES, OUTS>(x, expert, order, gate_w, up_w, y,
//@call         thread_position_in_grid.y, thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, int ROWS, int K, int IN, int OUT, int LANES, int OUTS, typename I, typename O>
METAL_FUNC void rows_gather_glu_dense(
    const device T* x,
    I expert,
    O order,
    const device T* gate_w,
    const device T* up_w,
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
  const RowsDense<T, IN> gate = {gate_w + at};
  const RowsDense<T, IN> up = {up_w + at};
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
  rows_dot<ROWS, IN, OUT, LANES, OUTS>(m, x, pair, n, first, lane, acc);
  for (int o = 0; o < OUTS; ++o) {
    if (lane % LANES == 0 && first + o < OUT) {
      for (int r = 0; r < n; ++r) {
        y[pair[r] * OUT + first + o] =
            static_cast<T>(rounded<T>(acc[o][r]) * static_cast<float>(weight[pair[r]]));
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
//@template T:type ROWS:int K:int IN:int OUT:int BITS:int GROUP:int LANES:int OUTS:int
//@in       x T ROWS*K, IN
//@in       expert int32 ROWS, K
//@in       order int32 ROWS*K
//@in       weight T ROWS, K
//@in       w uint32 experts, OUT, IN*BITS/32
//@in       scales T experts, OUT, IN/GROUP
//@in       biases T experts, OUT, IN/GROUP
//@out      y T ROWS*K, OUT
//@grid     32, OUT/(32/LANES*OUTS), ROWS*K
//@group    32, 4, 1
//@call     rows_gather_affine<T, ROWS, K, IN, OUT, BITS, GROUP, LANES, OUTS>(x, expert, order, weight,
//@call         w, scales, biases, y, thread_position_in_grid.y, thread_position_in_grid.z,
//@call         thread_index_in_simdgroup);
template <typename T, int ROWS, int K, int IN, int OUT, int BITS, int GROUP, int LANES, int OUTS, typename I, typename O, typename W>
METAL_FUNC void rows_gather_affine(
    const device T* x,
    I expert,
    O order,
    W weight,
    const device uint* w,
    const device T* scales,
    const device T* biases,
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
  const RowsAffine<BITS, GROUP, IN, const device T*> m = {
      w + i_expert * OUT * (IN / 32 * BITS), scales + groups, biases + groups};
  rows_weighted<ROWS, IN, OUT, LANES, OUTS>(m, x, weight, pair, n, y, i_simd, lane);
}

// rows_gather_dense -- as rows_gather_affine with matrices in T.
//@kernel   rows_gather_dense
//@template T:type ROWS:int K:int IN:int OUT:int LANES:int OUTS:int
//@in       x T ROWS*K, IN
//@in       expert int32 ROWS, K
//@in       order int32 ROWS*K
//@in       weight T ROWS, K
//@in       w T experts, OUT, IN
//@out      y T ROWS*K, OUT
//@grid     32, OUT/(32/LANES*OUTS), ROWS*K
//@group    32, 4, 1
//@call     rows_gather_dense<T, ROWS, K, IN, OUT, LANES, OUTS>(x, expert, order, weight, w, y,
//@call         thread_position_in_grid.y, thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, int ROWS, int K, int IN, int OUT, int LANES, int OUTS, typename I, typename O, typename W>
METAL_FUNC void rows_gather_dense(
    const device T* x,
    I expert,
    O order,
    W weight,
    const device T* w,
    device T* y,
    int i_simd,
    int i_slot,
    int lane) {
  int pair[ROWS];
  const int n = rows_run<ROWS>(expert, order, ROWS * K, i_slot, pair);
  if (n == 0) {
    return;
  }
  const RowsDense<T, IN> m = {w + static_cast<long>(expert[pair[0]]) * (OUT * IN)};
  rows_weighted<ROWS, IN, OUT, LANES, OUTS>(m, x, weight, pair, n, y, i_simd, lane);
}
