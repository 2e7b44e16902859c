/** Gated DeltaNet between its projections: convolution, gates, delta rule,
 * gated norm. */
#include "kernels/cpu/families.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/product.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

namespace {

/** What the recurrence reads of all rows. */
struct Inputs {
  float* c;     // [n, channels]: q, k normalised, v
  float* decay; // [n, Hv]
  float* beta;  // [n, Hv]
  int channels;
};

/** log(1 + e^x) */
inline float softplus(float x) {
  return (x > 0 ? x : 0.0f) +
         __builtin_log1pf(__builtin_expf(-__builtin_fabsf(x)));
}

template <typename T>
const T* history_row(const GdnCall& c, int t) {
  return t < 0 ? static_cast<const T*>(c.conv.data) +
                     (t + c.kernel - 1) * c.conv.stride
               : static_cast<const T*>(c.qkv.data) + t * c.qkv.stride;
}

template <typename T>
void prepare_row(
    const GdnCall& c,
    int t,
    const float* taps,
    const float* rate,
    const float* dt_bias,
    const Inputs& to) {
  float* row = to.c + int64_t{t} * to.channels;
  for_lanes(to.channels, [&](int i, int count) {
    F acc = splat(0.0f);
    for (int j = 0; j < c.kernel; ++j) {
      F x = load_n(history_row<T>(c, t - c.kernel + 1 + j) + i, count);
      acc = fma(load_n(taps + int64_t{j} * to.channels + i, count), x, acc);
    }
    store_n(row + i, silu<T>(rounded<T>(acc)), count);
  });
  const float q_scale =
      rounded<T>(1.0f / __builtin_sqrtf(static_cast<float>(c.key_dim)));
  for (int h = 0; h < 2 * c.key_heads; ++h) {
    float* head = row + int64_t{h} * c.key_dim;
    const F scale =
        splat(1.0f / __builtin_sqrtf(sum_of_squares(head, c.key_dim) + 1e-6f));
    const F after = splat(h < c.key_heads ? q_scale : 1.0f);
    for_lanes(c.key_dim, [&](int i, int count) {
      F unit = rounded<T>(load_n(head + i, count) * scale);
      store_n(head + i, rounded<T>(unit * after), count);
    });
  }
  const T* a = static_cast<const T*>(c.a.data) + t * c.a.stride;
  const T* b = static_cast<const T*>(c.b.data) + t * c.b.stride;
  for (int h = 0; h < c.value_heads; ++h) {
    float step = rounded<T>(softplus(rounded<T>(load1(a + h) + dt_bias[h])));
    to.decay[t * c.value_heads + h] = exp(-(rate[h] * step));
    to.beta[t * c.value_heads + h] = rounded<T>(sigmoid(load1(b + h)));
  }
}

/** Most vectors of a state row: key_dim up to 256. */
constexpr int kMaxVectors = 16;

/** R rows of the state of head h from row dv, over all rows of the launch. They
 *  stay in registers when `vectors` is known at compile time. */
template <int R, int kVectors>
QWENMTP_INLINE void recur(
    const GdnCall& c,
    const Inputs& in,
    int h,
    int dv,
    float* out) {
  const int vectors = kVectors > 0 ? kVectors : c.key_dim / kLanes;
  F s[R][kVectors > 0 ? kVectors : kMaxVectors];
  const int64_t at = (int64_t{h} * c.value_dim + dv) * c.key_dim;
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < vectors; ++i) {
      s[r][i] = load(c.delta + at + r * c.key_dim + i * kLanes);
    }
  }
  const int key_head = h / (c.value_heads / c.key_heads);
  for (int t = 0; t < c.n_rows; ++t) {
    const float* q = in.c + int64_t{t} * in.channels + key_head * c.key_dim;
    const float* k = q + c.key_heads * c.key_dim;
    const float* v = in.c + int64_t{t} * in.channels +
                     2 * c.key_heads * c.key_dim + h * c.value_dim + dv;
    const F decay = splat(in.decay[t * c.value_heads + h]);
    const float beta = in.beta[t * c.value_heads + h];
    F acc[R];
    for (int r = 0; r < R; ++r) {
      acc[r] = splat(0.0f);
    }
    for (int i = 0; i < vectors; ++i) {
      const F ki = load(k + i * kLanes);
      for (int r = 0; r < R; ++r) {
        s[r][i] = s[r][i] * decay;
        acc[r] = fma(s[r][i], ki, acc[r]);
      }
    }
    F step[R];
    for (int r = 0; r < R; ++r) {
      step[r] = splat((v[r] - sum(acc[r])) * beta);
      acc[r] = splat(0.0f);
    }
    for (int i = 0; i < vectors; ++i) {
      const F ki = load(k + i * kLanes);
      const F qi = load(q + i * kLanes);
      for (int r = 0; r < R; ++r) {
        s[r][i] = fma(ki, step[r], s[r][i]);
        acc[r] = fma(s[r][i], qi, acc[r]);
      }
    }
    if (out != nullptr) {
      for (int r = 0; r < R; ++r) {
        out[(int64_t{t} * c.value_heads + h) * c.value_dim + dv + r] =
            sum(acc[r]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < vectors; ++i) {
      store(c.delta_out + at + r * c.key_dim + i * kLanes, s[r][i]);
    }
  }
}

void recur_rows(const GdnCall& c, const Inputs& in, float* out) {
  constexpr int kBlock = 2;
  const int blocks = (c.value_dim + kBlock - 1) / kBlock;
  const int units = c.value_heads * blocks;
  const int parts = parts_for(
      int64_t{2} * c.n_rows * c.value_heads * c.value_dim * c.key_dim,
      units);
  parallel_for(parts, [&](int part) {
    for (int u = part_begin(units, parts, part);
         u < part_begin(units, parts, part + 1);
         ++u) {
      const int h = u / blocks;
      const int dv = u % blocks * kBlock;
      if (dv + kBlock > c.value_dim) {
        recur<1, 0>(c, in, h, dv, out);
      } else if (c.key_dim == 8 * kLanes) {
        recur<kBlock, 8>(c, in, h, dv, out);
      } else {
        recur<kBlock, 0>(c, in, h, dv, out);
      }
    }
  });
}

template <typename T>
void gated_norm_row(const GdnCall& c, int t, const float* norm, float* o) {
  const T* z = static_cast<const T*>(c.z.data) + t * c.z.stride;
  T* y = static_cast<T*>(c.y.data) + t * c.y.stride;
  for (int h = 0; h < c.value_heads; ++h) {
    const int at = h * c.value_dim;
    for_lanes(c.value_dim, [&](int i, int count) {
      store_n(o + at + i, rounded<T>(load_n(o + at + i, count)), count);
    });
    rms_norm<T>(o + at, norm, o + at, c.value_dim, c.eps);
    for_lanes(c.value_dim, [&](int i, int count) {
      F gate = sigmoid(load_n(z + at + i, count));
      store_n(y + at + i, load_n(o + at + i, count) * gate, count);
    });
  }
}

template <typename T>
void gdn_of(const GdnCall& c) {
  const int n = c.n_rows;
  Scratch scratch;
  Inputs in;
  in.channels = 2 * c.key_heads * c.key_dim + c.value_heads * c.value_dim;
  in.c = scratch.floats(int64_t{n} * in.channels);
  in.decay = scratch.floats(int64_t{n} * c.value_heads);
  in.beta = scratch.floats(int64_t{n} * c.value_heads);
  const float* taps = widened(c.taps, c.kernel * in.channels, scratch);
  const float* rate = widened(c.decay_rate, c.value_heads, scratch);
  const float* dt_bias = widened(c.dt_bias, c.value_heads, scratch);
  const float* norm = widened(c.norm, c.value_dim, scratch);
  const int row_parts = parts_for(int64_t{16} * n * in.channels, n);
  parallel_for(row_parts, [&](int part) {
    for (int t = part_begin(n, row_parts, part);
         t < part_begin(n, row_parts, part + 1);
         ++t) {
      prepare_row<T>(c, t, taps, rate, dt_bias, in);
    }
  });
  for (int j = 0; j < c.kernel - 1; ++j) {
    __builtin_memcpy(
        static_cast<T*>(c.conv_out.data) + j * c.conv_out.stride,
        history_row<T>(c, n - c.kernel + 1 + j),
        in.channels * sizeof(T));
  }
  const int width = c.value_heads * c.value_dim;
  float* out =
      c.y.data == nullptr ? nullptr : scratch.floats(int64_t{n} * width);
  recur_rows(c, in, out);
  if (out == nullptr) {
    return;
  }
  parallel_for(row_parts, [&](int part) {
    for (int t = part_begin(n, row_parts, part);
         t < part_begin(n, row_parts, part + 1);
         ++t) {
      gated_norm_row<T>(c, t, norm, out + int64_t{t} * width);
    }
  });
}

} // namespace

void gdn(const GdnCall& call) {
  with_activation(call.type, [&](auto* t) {
    gdn_of<std::remove_pointer_t<decltype(t)>>(call);
  });
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
