// Gated DeltaNet between its two projections: convolution, gates, the delta
// rule over one recurrent state a value head, gated norm.
// The file is over 400 lines: its kernels share the state's layout in registers.
//
// A projected row is [q HK*DK | k HK*DK | v HV*DV | z HV*DV | a HV | b HV], in
// model type T.
//
// Nothing is updated in place, so a round's rows stay provisional until the
// next launch: `tail` and `state` are what the window before the last left,
// `prev` that window's rows, of which the first `keep` count. Each launch
// applies them first and hands out the state it reached.

// log(1 + e^v); the quotient undoes the rounding of 1 + u where u is small.
METAL_FUNC float gdn_softplus(float v) {
  const float u = metal::exp(-metal::abs(v));
  const float w = 1.0f + u;
  const float positive = metal::max(v, 0.0f);
  return w == 1.0f ? positive + u : metal::fma(metal::log(w), u / (w - 1.0f), positive);
}

// gdn_inputs -- depthwise causal convolution, SiLU, l2 norm of q and k, gates.
//   arrays    proj, prev: projected rows; tail [CONV-1, 2*HK*DK + HV*DV], oldest first;
//             decay_rate = exp(A_log)
//   grid      (32, 2*HK + HV, rows), threadgroup (32, 4, 1): one simdgroup per head and row
//   memory    CONV rows of proj read, one written: 330 KB for 4 rows at the released size
//   numerics  float, fma over taps oldest first; rounds after conv, sigmoid, SiLU, norm, scale;
//             a + dt_bias and softplus round, g stays float
//   law       Yang et al., arXiv 2412.06464; l2 epsilon 1e-6 on the sum of squares
//@kernel   gdn_inputs
//@template T:type HK:int HV:int DK:int DV:int CONV:int
//@in       proj T rows, 2*HK*DK+2*HV*DV+2*HV
//@in       prev T prev_rows, 2*HK*DK+2*HV*DV+2*HV
//@in       keep int32 1
//@in       tail T CONV-1, 2*HK*DK+HV*DV
//@in       conv_w float32 CONV, 2*HK*DK+HV*DV
//@in       decay_rate float32 HV
//@in       dt_bias T HV
//@out      q T rows, HK, DK
//@out      k T rows, HK, DK
//@out      v T rows, HV, DV
//@out      g float32 rows, HV
//@out      beta T rows, HV
//@out      tail_out T CONV-1, 2*HK*DK+HV*DV
//@grid     32, 2*HK+HV, rows
//@group    32, 4, 1
//@call     gdn_inputs<T, HK, HV, DK, DV, CONV>(proj, prev, keep[0], tail, conv_w, decay_rate,
//@call         dt_bias, q, k, v, g, beta, tail_out, thread_position_in_grid.y,
//@call         thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, int HK, int HV, int DK, int DV, int CONV, typename F, typename B>
METAL_FUNC void gdn_inputs(
    const device T* proj,
    const device T* prev,
    int keep,
    const device T* tail,
    const device float* conv_w,
    F decay_rate,
    B dt_bias,
    device T* q,
    device T* k,
    device T* v,
    device float* g,
    device T* beta,
    device T* tail_out,
    int i_head,
    int i_row,
    int lane) {
  constexpr int channels = 2 * HK * DK + HV * DV;
  constexpr int width = channels + HV * DV + 2 * HV;
  constexpr int most = (DK > DV ? DK : DV) / 32;
  static_assert(DK % 32 == 0 && DV % 32 == 0, "a lane holds whole columns");
  if (i_head >= 2 * HK + HV) {
    return;
  }
  const bool is_value = i_head >= 2 * HK;
  const int first = is_value ? 2 * HK * DK + (i_head - 2 * HK) * DV : i_head * DK;
  const int n = (is_value ? DV : DK) / 32;

  float c[most];
  float square = 0.0f;
  for (int j = 0; j < n; ++j) {
    const int i_channel = first + lane + 32 * j;
    float sum = 0.0f;
    for (int t = 0; t < CONV; ++t) {
      const int i_proj = i_row + t - (CONV - 1);   // row of this window
      const int i_past = keep + i_row + t;         // row of tail, then prev
      float x;
      if (i_proj >= 0) {
        x = static_cast<float>(proj[i_proj * width + i_channel]);
      } else if (i_past >= CONV - 1) {
        x = static_cast<float>(prev[(i_past - (CONV - 1)) * width + i_channel]);
      } else {
        x = static_cast<float>(tail[i_past * channels + i_channel]);
      }
      sum = metal::fma(conv_w[t * channels + i_channel], x, sum);
    }
    const float conv = rounded<T>(sum);
    c[j] = silu_rounded<T>(conv);
    square = metal::fma(c[j], c[j], square);
    if (i_row == 0) {
      for (int t = 0; t < CONV - 1; ++t) {
        const int i_past = keep + t;
        tail_out[t * channels + i_channel] = i_past >= CONV - 1
            ? prev[(i_past - (CONV - 1)) * width + i_channel]
            : tail[i_past * channels + i_channel];
      }
    }
  }
  const float inverse = metal::rsqrt(simd_sum(square) + 1e-6f);

  if (!is_value) {
    const bool is_query = i_head < HK;
    const float scale = rounded<T>(metal::rsqrt(static_cast<float>(DK)));
    const int at = (i_row * HK + (is_query ? i_head : i_head - HK)) * DK;
    for (int j = 0; j < n; ++j) {
      const float unit = rounded<T>(c[j] * inverse);
      if (is_query) {
        q[at + lane + 32 * j] = static_cast<T>(unit * scale);
      } else {
        k[at + lane + 32 * j] = static_cast<T>(unit);
      }
    }
    return;
  }
  const int i_value = i_head - 2 * HK;
  for (int j = 0; j < n; ++j) {
    v[(i_row * HV + i_value) * DV + lane + 32 * j] = static_cast<T>(c[j]);
  }
  if (lane == 0) {
    const int gates = i_row * width + channels + HV * DV + i_value;
    const float a = rounded<T>(
        static_cast<float>(proj[gates]) + static_cast<float>(dt_bias[i_value]));
    g[i_row * HV + i_value] = metal::exp(-decay_rate[i_value] * rounded<T>(gdn_softplus(a)));
    beta[i_row * HV + i_value] =
        static_cast<T>(sigmoid_f(static_cast<float>(proj[gates + HV])));
  }
}

// A simdgroup holds eight rows of the state: eight lanes share two of them, each
// lane DK/8 values of both in runs of four.
template <int DK>
struct GdnState {
  enum { n = DK / 8 };
  float s[2][n];

  // Row of the value head that slot `i` of this lane holds, counted from the simdgroup's first.
  METAL_FUNC static int row(int i, int lane) {
    return 2 * (lane / 8) + i;
  }

  template <typename T>
  METAL_FUNC static void values(const device T* p, int lane, thread float (&v)[n]) {
    for (int j = 0; j < n; j += 4) {
      load4(p + 8 * j + 4 * (lane % 8), v + j);
    }
  }

  METAL_FUNC static float joined(float v) {
    for (int mask = 1; mask < 8; mask <<= 1) {
      v += simd_shuffle_xor(v, static_cast<ushort>(mask));
    }
    return v;
  }

  METAL_FUNC void load(const device float* state, int n_left, int lane) {
    for (int i = 0; i < 2; ++i) {
      values(state + metal::min(row(i, lane), n_left - 1) * DK, lane, s[i]);
    }
  }
  METAL_FUNC void store(device float* state, int n_left, int lane) const {
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; row(i, lane) < n_left && j < n; j += 4) {
        *(device float4*)(state + row(i, lane) * DK + 8 * j + 4 * (lane % 8)) =
            float4(s[i][j], s[i][j + 1], s[i][j + 2], s[i][j + 3]);
      }
    }
  }

  // One row of the delta rule: decay, read with k, write the corrected value.
  template <typename T>
  METAL_FUNC void advance(const device T* k, const device T* v, float g, float beta, int n_left, int lane) {
    float b_k[n];
    values(k, lane, b_k);
    for (int i = 0; i < 2; ++i) {
      float read = 0.0f;
      for (int j = 0; j < n; ++j) {
        s[i][j] *= g;
        read = metal::fma(s[i][j], b_k[j], read);
      }
      const float b_v = static_cast<float>(v[metal::min(row(i, lane), n_left - 1)]);
      const float delta = (b_v - joined(read)) * beta;
      for (int j = 0; j < n; ++j) {
        s[i][j] = metal::fma(b_k[j], delta, s[i][j]);
      }
    }
  }

  // The state's rows times q.
  template <typename T>
  METAL_FUNC void read(const device T* q, int lane, thread float (&out)[2]) const {
    float b_q[n];
    values(q, lane, b_q);
    for (int i = 0; i < 2; ++i) {
      float sum = 0.0f;
      for (int j = 0; j < n; ++j) {
        sum = metal::fma(s[i][j], b_q[j], sum);
      }
      out[i] = joined(sum);
    }
  }
};

// RMS norm of one head's output `o` [DV], weight, times sigmoid(z). `o` is
// already rounded to T; norm, weight and gate round in turn.
template <typename T, int DV, typename O, typename Z, typename Y>
METAL_FUNC void gdn_gated_norm(O o, Z z, const device T* norm_w, float eps, Y out, int lane) {
  float square = 0.0f;
  for (int i = lane; i < DV; i += 32) {
    const float b_o = static_cast<float>(o[i]);
    square = metal::fma(b_o, b_o, square);
  }
  const float inverse = metal::rsqrt(simd_sum(square) / static_cast<float>(DV) + eps);
  for (int i = lane; i < DV; i += 32) {
    const float unit = rounded<T>(static_cast<float>(o[i]) * inverse);
    const float scaled = rounded<T>(unit * static_cast<float>(norm_w[i]));
    out[i] = static_cast<T>(scaled * sigmoid_f(static_cast<float>(z[i])));
  }
}

// gdn_step -- one gated delta step per row, state kept in registers.
//   arrays    q k [rows,HK,DK], v y [rows,HV,DV] in T; g [rows,HV], state [HV,DV,DK] in float
//   grid      (32, DV/8, HV), threadgroup (32, 4, 1): one simdgroup per eight state rows
//   memory    state read once and written once: 6.3 MB at 48x128x128; rows negligible
//   numerics  float, fma, fixed reduction order; decay before the read; y rounds once
//   law       Yang et al., arXiv 2412.06464
//@kernel   gdn_step
//@template T:type HK:int HV:int DK:int DV:int
//@in       q T rows, HK, DK
//@in       k T rows, HK, DK
//@in       v T rows, HV, DV
//@in       g float32 rows, HV
//@in       beta T rows, HV
//@in       state float32 HV, DV, DK
//@in       n_rows int32 1
//@out      y T rows, HV, DV
//@out      state_out float32 HV, DV, DK
//@grid     32, DV/8, HV
//@group    32, 4, 1
//@call     gdn_step<T, HK, HV, DK, DV>(q, k, v, g, beta, state, n_rows[0], y, state_out,
//@call         thread_position_in_grid.y, thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, int HK, int HV, int DK, int DV, typename G, typename B>
METAL_FUNC void gdn_step(
    const device T* q,
    const device T* k,
    const device T* v,
    G g,
    B beta,
    const device float* state,
    int n_rows,
    device T* y,
    device float* state_out,
    int i_simd,
    int i_value,
    int lane) {
  const int i_key = i_value / (HV / HK);
  const int i_dv = 8 * i_simd;
  if (i_dv >= DV) {
    return;
  }
  const int at = (i_value * DV + i_dv) * DK;
  const int n_left = DV - i_dv;
  GdnState<DK> s;
  s.load(state + at, n_left, lane);
  for (int r = 0; r < n_rows; ++r) {
    const int head = r * HV + i_value;
    const int key = (r * HK + i_key) * DK;
    s.advance(k + key, v + head * DV + i_dv, g[head], static_cast<float>(beta[head]), n_left, lane);
    float out[2];
    s.read(q + key, lane, out);
    for (int i = 0; i < 2; ++i) {
      if (lane % 8 == 0 && s.row(i, lane) < n_left) {
        y[head * DV + i_dv + s.row(i, lane)] = static_cast<T>(out[i]);
      }
    }
  }
  s.store(state_out + at, n_left, lane);
}

// gdn_norm -- gated norm of gdn_step's output, one simdgroup per head and row.
//   arrays    y [rows,HV,DV], proj as above, out [rows,HV*DV] in T
//   grid      (32, HV, rows), threadgroup (32, 4, 1)
//   memory    two reads and a write of rows*HV*DV
//   numerics  float; rounds after norm, weight and gate
//   law       model.md 7: the gate is a sigmoid
//@kernel   gdn_norm
//@template T:type HK:int HV:int DK:int DV:int
//@in       y T rows, HV, DV
//@in       proj T rows, 2*HK*DK+2*HV*DV+2*HV
//@in       norm_w T DV
//@in       eps float32 1
//@out      out T rows, HV*DV
//@grid     32, HV, rows
//@group    32, 4, 1
//@call     gdn_norm<T, HK, HV, DK, DV>(y, proj, norm_w, eps[0], out, thread_position_in_grid.y,
//@call         thread_position_in_grid.z, thread_index_in_simdgroup);
template <typename T, int HK, int HV, int DK, int DV>
METAL_FUNC void gdn_norm(
    const device T* y,
    const device T* proj,
    const device T* norm_w,
    float eps,
    device T* out,
    int i_value,
    int i_row,
    int lane) {
  constexpr int channels = 2 * HK * DK + HV * DV;
  constexpr int width = channels + HV * DV + 2 * HV;
  if (i_value >= HV) {
    return;
  }
  const int head = (i_row * HV + i_value) * DV;
  gdn_gated_norm<T, DV>(y + head, proj + i_row * width + channels + i_value * DV, norm_w, eps,
                        out + head, lane);
}

// gdn_verify_rows -- commit the last window's kept rows, then run this window's
// rows on a copy that is dropped; gated norm at the end.
//   arrays    as gdn_step; prev_k prev_v prev_g prev_beta of the last window; 1..8 rows
//   grid      (32, 16, HV), threadgroup (32, 16, 1): one threadgroup per value head
//   memory    state read once and written once: 6.3 MB at 48x128x128; 16 KB shared
//   numerics  row by row as gdn_step and gdn_norm: the same bits
//   law       Yang et al., arXiv 2412.06464; commit(keep) = the kept rows decoded one by one
//@kernel   gdn_verify_rows
//@template T:type HK:int HV:int DK:int DV:int
//@in       q T rows, HK, DK
//@in       k T rows, HK, DK
//@in       v T rows, HV, DV
//@in       g float32 rows, HV
//@in       beta T rows, HV
//@in       proj T rows, 2*HK*DK+2*HV*DV+2*HV
//@in       norm_w T DV
//@in       eps float32 1
//@in       state float32 HV, DV, DK
//@in       prev_k T prev_rows, HK, DK
//@in       prev_v T prev_rows, HV, DV
//@in       prev_g float32 prev_rows, HV
//@in       prev_beta T prev_rows, HV
//@in       keep int32 1
//@in       n_rows int32 1
//@out      out T rows, HV*DV
//@out      state_out float32 HV, DV, DK
//@shared   float o[8 * DV]
//@grid     32, 16, HV
//@group    32, 16, 1
//@call     gdn_verify_rows<T, HK, HV, DK, DV>(q, k, v, g, beta, proj, norm_w, eps[0], state,
//@call         prev_k, prev_v, prev_g, prev_beta, keep[0], n_rows[0], out, state_out, o,
//@call         threadgroup_position_in_grid.z, simdgroup_index_in_threadgroup,
//@call         thread_index_in_simdgroup);
template <typename T, int HK, int HV, int DK, int DV, typename G, typename B, typename PG, typename PB>
METAL_FUNC void gdn_verify_rows(
    const device T* q,
    const device T* k,
    const device T* v,
    G g,
    B beta,
    const device T* proj,
    const device T* norm_w,
    float eps,
    const device float* state,
    const device T* prev_k,
    const device T* prev_v,
    PG prev_g,
    PB prev_beta,
    int keep,
    int n_rows,
    device T* out,
    device float* state_out,
    threadgroup float* o,
    int i_value,
    int i_simd,
    int lane) {
  constexpr int channels = 2 * HK * DK + HV * DV;
  constexpr int width = channels + HV * DV + 2 * HV;
  const int i_key = i_value / (HV / HK);
  for (int i_dv = 8 * i_simd; i_dv < DV; i_dv += 128) {
    const int at = (i_value * DV + i_dv) * DK;
    const int n_left = DV - i_dv;
    GdnState<DK> s;
    s.load(state + at, n_left, lane);
    for (int r = 0; r < keep; ++r) {
      const int head = r * HV + i_value;
      s.advance(prev_k + (r * HK + i_key) * DK, prev_v + head * DV + i_dv, prev_g[head],
                static_cast<float>(prev_beta[head]), n_left, lane);
    }
    s.store(state_out + at, n_left, lane);
    for (int r = 0; r < n_rows; ++r) {
      const int head = r * HV + i_value;
      const int key = (r * HK + i_key) * DK;
      s.advance(k + key, v + head * DV + i_dv, g[head], static_cast<float>(beta[head]), n_left, lane);
      float b_o[2];
      s.read(q + key, lane, b_o);
      for (int i = 0; i < 2; ++i) {
        if (lane % 8 == 0 && s.row(i, lane) < n_left) {
          o[r * DV + i_dv + s.row(i, lane)] = rounded<T>(b_o[i]);
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int r = i_simd; r < n_rows; r += 16) {
    gdn_gated_norm<T, DV>(o + r * DV, proj + r * width + channels + i_value * DV, norm_w, eps,
                          out + (r * HV + i_value) * DV, lane);
  }
}
