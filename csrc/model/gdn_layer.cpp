#include "model/gdn_layer.h"

namespace qwenmtp::model {

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

GdnLayer::GdnLayer(Weights& w, const Config& c, const std::string& module)
    : dtype_(w.dtype()),
      weights_{
          conv_weight(
              w,
              module + ".conv1d.weight",
              module + ".conv1d.weight",
              c.gdn_channels(),
              c.gdn_conv_kernel),
          settled(mx::exp(
              w.dense(module + ".A_log", {c.gdn_value_heads}, mx::float32))),
          w.dense(module + ".dt_bias", {c.gdn_value_heads}, dtype_),
          w.dense(module + ".norm.weight", {c.gdn_value_dim}, dtype_),
          c.gdn_key_heads,
          c.gdn_value_heads,
          c.gdn_key_dim,
          c.gdn_value_dim,
          static_cast<float>(c.rms_norm_eps)},
      out_(w.linear(
          module + ".out_proj",
          {c.hidden_size, c.gdn_value_heads * c.gdn_value_dim})) {
  auto in = [&](const char* leaf, int out) {
    in_.push_back(w.linear(module + leaf, {out, c.hidden_size}).matrix());
  };
  in(".in_proj_qkv", c.gdn_channels());
  in(".in_proj_z", c.gdn_value_heads * c.gdn_value_dim);
  in(".in_proj_a", c.gdn_value_heads);
  in(".in_proj_b", c.gdn_value_heads);
}

state::GdnState GdnLayer::initial_state() const {
  const auto& w = weights_;
  return {
      mx::zeros({w.taps.shape(0) - 1, w.taps.shape(1)}, dtype_),
      mx::zeros({w.value_heads, w.value_dim, w.key_dim})};
}

mx::array GdnLayer::forward(
    const mx::array& u,
    state::GdnState& state,
    std::optional<state::GdnWindow>* window) const {
  auto in = kernels::rows(u, in_);
  if (window) {
    *window = state::GdnWindow{state, in[0], in[2], in[3]};
  }
  auto r = kernels::gdn(
      {in[0], in[2], in[3]},
      in[1],
      {state.conv, state.delta},
      weights_);
  state = {r.states.conv, r.states.delta};
  return out_(r.y);
}

state::GdnState GdnLayer::commit(const state::GdnWindow& w, int keep) const {
  auto s = kernels::gdn_commit(
      {w.qkv, w.a, w.b},
      keep,
      {w.before.conv, w.before.delta},
      weights_);
  return {s.conv, s.delta};
}

} // namespace qwenmtp::model
