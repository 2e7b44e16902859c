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
  return weights.settled(
      mx::contiguous(mx::transpose(mx::reshape(w, {channels, kernel}))));
}

GdnLayer::GdnLayer(Weights& w, const Config& c, const std::string& module)
    : dtype_(w.dtype()),
      in_(w.stacked(
          {{module + ".in_proj_qkv", c.gdn_channels()},
           {module + ".in_proj_z", c.gdn_value_heads * c.gdn_value_dim},
           {module + ".in_proj_a", c.gdn_value_heads},
           {module + ".in_proj_b", c.gdn_value_heads}},
          c.hidden_size)),
      weights_{
          conv_weight(
              w,
              module + ".conv1d.weight",
              module + ".conv1d.weight",
              c.gdn_channels(),
              c.gdn_conv_kernel),
          w.settled(mx::exp(
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
}

namespace {

kernels::GdnStates to_kernel(const state::GdnState& s) {
  return {s.conv, s.delta, s.waiting, s.keep};
}

state::GdnState from_kernel(const kernels::GdnStates& s) {
  return {s.conv, s.delta, s.waiting, s.keep};
}

} // namespace

state::GdnState GdnLayer::initial_state() const {
  const auto& w = weights_;
  return {
      mx::zeros({w.taps.shape(0) - 1, w.taps.shape(1)}, dtype_),
      mx::zeros({w.value_heads, w.value_dim, w.key_dim}),
      {},
      0};
}

mx::array GdnLayer::forward(
    const mx::array& u,
    state::GdnState& state,
    std::optional<state::GdnWindow>* window) const {
  auto r = kernels::gdn(in_(u), to_kernel(state), weights_);
  if (window) {
    window->emplace();
    for (const auto& part : r.before) {
      (*window)->push_back(from_kernel(part));
    }
  }
  state = from_kernel(r.states);
  return out_(r.y);
}

state::GdnState GdnLayer::commit(const state::GdnWindow& window, int keep)
    const {
  std::vector<kernels::GdnStates> before;
  for (const auto& part : window) {
    before.push_back(to_kernel(part));
  }
  return from_kernel(kernels::gdn_commit(before, keep, weights_));
}

state::GdnState GdnLayer::settle(const state::GdnState& state) const {
  return from_kernel(kernels::gdn_settled(to_kernel(state), weights_));
}

} // namespace qwenmtp::model
