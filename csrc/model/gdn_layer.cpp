#include "model/gdn_layer.h"

#include <cmath>

#include "model/math.h"

namespace qwenmtp::model {

mx::array causal_conv_silu(
    const mx::array& rows,
    const mx::array& w,
    int dilation) {
  int kernel = w.shape(0);
  int n = rows.shape(0) - (kernel - 1) * dilation;
  int channels = rows.shape(1);
  auto wide = mx::astype(rows, mx::float32);
  auto sum = mx::zeros({n, channels});
  for (int j = 0; j < kernel; j++) {
    auto tap = mx::slice(wide, {j * dilation, 0}, {j * dilation + n, channels});
    sum = mx::add(
        sum,
        mx::multiply(tap, mx::slice(w, {j, 0}, {j + 1, channels})));
  }
  return silu(mx::astype(sum, rows.dtype()));
}

mx::array conv_weight(
    Weights& weights,
    const std::string& released_name,
    const std::string& converted_name,
    int channels,
    int kernel) {
  auto w =
      weights.layout() == Layout::released
          ? weights.dense(released_name, {channels, 1, kernel}, mx::float32)
          : weights.dense(converted_name, {channels, kernel, 1}, mx::float32);
  return settled(
      mx::contiguous(mx::transpose(mx::reshape(w, {channels, kernel}))));
}

GdnLayer::GdnLayer(Weights& weights, const Config& c, const std::string& module)
    : key_heads_(c.gdn_key_heads),
      value_heads_(c.gdn_value_heads),
      key_dim_(c.gdn_key_dim),
      value_dim_(c.gdn_value_dim),
      kernel_(c.gdn_conv_kernel),
      eps_(c.rms_norm_eps),
      dtype_(weights.dtype()),
      in_qkv_(weights.linear(
          module + ".in_proj_qkv",
          {c.gdn_channels(), c.hidden_size})),
      in_z_(weights.linear(
          module + ".in_proj_z",
          {value_heads_ * value_dim_, c.hidden_size})),
      in_a_(
          weights.linear(module + ".in_proj_a", {value_heads_, c.hidden_size})),
      in_b_(
          weights.linear(module + ".in_proj_b", {value_heads_, c.hidden_size})),
      conv_(conv_weight(
          weights,
          module + ".conv1d.weight",
          module + ".conv1d.weight",
          c.gdn_channels(),
          kernel_)),
      decay_rate_(settled(mx::exp(
          weights.dense(module + ".A_log", {value_heads_}, mx::float32)))),
      dt_bias_(weights.dense(module + ".dt_bias", {value_heads_}, dtype_)),
      norm_(weights.dense(module + ".norm.weight", {value_dim_}, dtype_)),
      out_(weights.linear(
          module + ".out_proj",
          {c.hidden_size, value_heads_ * value_dim_})) {
}

state::GdnState GdnLayer::initial_state() const {
  return {
      mx::zeros({kernel_ - 1, conv_.shape(1)}, dtype_),
      mx::zeros({value_heads_, value_dim_, key_dim_})};
}

namespace {

struct Recurrence {
  mx::array out;   // [n, Hv, Dv]
  mx::array delta; // [Hv, Dv, Dk]
};

/** The delta rule over rows; decay and beta [n, Hv]. Row by row on every back
 *  end, so splits of the rows give the same bits. */
Recurrence recur(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const mx::array& decay,
    const mx::array& beta,
    const mx::array& delta) {
  auto batch = [](const mx::array& a) { return mx::expand_dims(a, 0); };
  auto r = mx::fast::gated_delta_update(
      batch(q),
      batch(k),
      batch(v),
      batch(decay),
      batch(beta),
      batch(delta));
  return {mx::squeeze(r[0], 0), mx::squeeze(r[1], 0)};
}

mx::array first_rows(const mx::array& a, int n) {
  auto stop = a.shape();
  stop[0] = n;
  return mx::slice(a, mx::Shape(a.ndim(), 0), stop);
}

} // namespace

mx::array GdnLayer::forward(
    const mx::array& u,
    state::GdnState& state,
    std::optional<state::GdnWindow>* window) const {
  int n = u.shape(0);
  int keys = key_heads_ * key_dim_;
  auto z = in_z_(u);
  auto rows = mx::concatenate({state.conv, in_qkv_(u)}, 0);
  auto parts = mx::split(
      causal_conv_silu(rows, conv_, 1),
      mx::Shape{keys, 2 * keys},
      -1);
  auto q = mx::multiply(
      l2_norm(mx::reshape(parts[0], {n, key_heads_, key_dim_})),
      mx::array(1.0f / std::sqrt(static_cast<float>(key_dim_)), u.dtype()));
  auto k = l2_norm(mx::reshape(parts[1], {n, key_heads_, key_dim_}));
  auto v = mx::reshape(parts[2], {n, value_heads_, value_dim_});
  auto step = softplus(mx::add(in_a_(u), dt_bias_));
  auto decay = mx::exp(
      mx::negative(mx::multiply(decay_rate_, mx::astype(step, mx::float32))));
  auto beta = mx::sigmoid(in_b_(u));
  auto r = recur(q, k, v, decay, beta, state.delta);
  if (window) {
    *window = state::GdnWindow{state, rows, q, k, v, decay, beta};
  }
  state.conv = mx::slice(rows, {n, 0}, {n + kernel_ - 1, rows.shape(1)});
  state.delta = r.delta;
  auto o = rms_norm(mx::astype(r.out, u.dtype()), norm_, eps_);
  auto gate = mx::sigmoid(
      mx::astype(mx::reshape(z, {n, value_heads_, value_dim_}), mx::float32));
  auto y = mx::astype(mx::multiply(o, gate), u.dtype());
  return out_(mx::flatten(y, -2, -1));
}

state::GdnState GdnLayer::commit(const state::GdnWindow& w, int keep) const {
  auto r = recur(
      first_rows(w.q, keep),
      first_rows(w.k, keep),
      first_rows(w.v, keep),
      first_rows(w.decay, keep),
      first_rows(w.beta, keep),
      w.before.delta);
  return {
      mx::slice(
          w.conv_rows,
          {keep, 0},
          {keep + kernel_ - 1, w.conv_rows.shape(1)}),
      r.delta};
}

} // namespace qwenmtp::model
