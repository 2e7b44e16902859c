#include "model/ple_layer.h"

#include <cmath>

#include "model/gdn_layer.h"
#include "model/math.h"

namespace qwenmtp::model {

PleLayer::PleLayer(
    Weights& w,
    const Config& c,
    const std::string& module,
    bool one_centred,
    std::shared_ptr<ple::Stager> stager)
    : count_(c.hc_count),
      hidden_(c.hidden_size),
      kernel_(c.ple_conv_kernel),
      dilation_(c.ngram_size),
      dim_(c.ple_dim),
      history_(c.ngram_size - 1),
      eos_(c.eos),
      eps_(c.rms_norm_eps),
      dtype_(w.dtype()),
      stager_(std::move(stager)),
      key_(w.linear(module + ".key_proj", {c.wide(), c.ple_dim})),
      value_(w.linear(module + ".value_proj", {c.hidden_size, c.ple_dim})),
      norm_key_(w.norm(module + ".norm_key.weight", c.wide(), one_centred)),
      norm_query_(w.norm(module + ".norm_query.weight", c.wide(), one_centred)),
      norm_conv_(w.norm(module + ".norm_conv.weight", c.wide(), one_centred)),
      conv_(conv_weight(
          w,
          module + ".conv1d.weight",
          module +
              (w.layout() == Layout::pack ? ".conv_weight" : ".conv1d.weight"),
          c.wide(),
          kernel_)) {
}

state::PleState PleLayer::initial_state() const {
  return {
      mx::zeros({(kernel_ - 1) * dilation_, count_ * hidden_}, dtype_),
      std::vector<int64_t>(history_, eos_)};
}

mx::array PleLayer::forward(
    const mx::array& x,
    std::span<const int32_t> ids,
    state::PleState& state,
    std::optional<state::PleWindow>* window) const {
  int n = static_cast<int>(ids.size());
  auto type =
      dtype_ == mx::bfloat16 ? ple::RowType::kBfloat16 : ple::RowType::kFloat32;
  auto buffer = mx::allocator::malloc(
      static_cast<size_t>(n) * dim_ * mx::size_of(dtype_));
  stager_->embed(ids, state.ids, type, buffer.buffer().raw_ptr());
  auto e = mx::array(std::move(buffer), {n, dim_}, dtype_);

  auto streams = [&](const mx::array& a) {
    return mx::unflatten(a, -1, {count_, hidden_});
  };
  auto key = grouped_rms_norm(key_(e), norm_key_, count_, eps_);
  auto query = grouped_rms_norm(x, norm_query_, count_, eps_);
  auto products = mx::astype(streams(mx::multiply(key, query)), mx::float32);
  auto s = mx::astype(
      mx::multiply(
          mx::sum(products, -1, true),
          mx::array(1.0f / std::sqrt(static_cast<float>(hidden_)))),
      dtype_);
  s = mx::multiply(
      mx::sign(s),
      mx::sqrt(mx::maximum(mx::abs(s), mx::array(1e-6f, dtype_))));
  auto gated = mx::flatten(
      mx::multiply(mx::sigmoid(s), mx::expand_dims(value_(e), -2)),
      -2,
      -1);
  auto rows = mx::concatenate(
      {state.conv, grouped_rms_norm(gated, norm_conv_, count_, eps_)},
      0);

  auto all_ids = state.ids;
  all_ids.insert(all_ids.end(), ids.begin(), ids.end());
  state::PleWindow whole{rows, std::move(all_ids)};
  state = commit(whole, n);
  if (window) {
    *window = std::move(whole);
  }
  return mx::add(gated, causal_conv_silu(rows, conv_, dilation_));
}

state::PleState PleLayer::commit(const state::PleWindow& w, int keep) const {
  int tail = (kernel_ - 1) * dilation_;
  return {
      mx::slice(w.conv_rows, {keep, 0}, {keep + tail, w.conv_rows.shape(1)}),
      {w.ids.begin() + keep, w.ids.begin() + keep + history_}};
}

} // namespace qwenmtp::model
