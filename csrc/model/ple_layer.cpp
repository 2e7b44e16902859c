#include "model/ple_layer.h"

#include "model/gdn_layer.h"

namespace qwenmtp::model {

PleLayer::PleLayer(
    Weights& w,
    const Config& c,
    const std::string& module,
    bool one_centred,
    std::shared_ptr<ple::Stager> stager)
    : dim_(c.ple_dim),
      history_(c.ngram_size - 1),
      eos_(c.eos),
      dtype_(w.dtype()),
      stager_(std::move(stager)),
      in_{w.linear(module + ".key_proj", {c.wide(), c.ple_dim}).matrix(),
          w.linear(module + ".value_proj", {c.hidden_size, c.ple_dim})
              .matrix()},
      weights_{
          w.norm(module + ".norm_key.weight", c.wide(), one_centred),
          w.norm(module + ".norm_query.weight", c.wide(), one_centred),
          w.norm(module + ".norm_conv.weight", c.wide(), one_centred),
          conv_weight(
              w,
              module + ".conv1d.weight",
              module + (w.layout() == Layout::pack ? ".conv_weight"
                                                   : ".conv1d.weight"),
              c.wide(),
              c.ple_conv_kernel),
          c.hc_count,
          c.ngram_size,
          static_cast<float>(c.rms_norm_eps)} {
}

state::PleState PleLayer::initial_state() const {
  const auto& taps = weights_.taps;
  return {
      mx::zeros(
          {(taps.shape(0) - 1) * weights_.dilation, taps.shape(1)},
          dtype_),
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
  size_t bytes = static_cast<size_t>(n) * dim_ * mx::size_of(dtype_);
  auto e = mx::array(mx::allocator::malloc(bytes), {n, dim_}, dtype_);
  stager_->embed(ids, state.ids, type, e.data<std::byte>());

  auto in = kernels::rows(e, in_);
  auto r = kernels::ple(x, in[0], in[1], state.conv, weights_);
  state::PleWindow whole{state, r.normed, {ids.begin(), ids.end()}};
  state = {r.conv, ids_after(whole, n)};
  if (window) {
    *window = std::move(whole);
  }
  return r.added;
}

void PleLayer::expect_behind(
    std::span<const int32_t> before,
    std::span<const int32_t> ids) const {
  std::vector<int64_t> past(history_, eos_);
  past.insert(past.end(), before.begin(), before.end());
  stager_->request(ids, std::span(past).last(history_));
}

state::PleState PleLayer::commit(const state::PleWindow& w, int keep) const {
  int tail = w.before.conv.shape(0);
  auto rows = mx::concatenate({w.before.conv, w.normed}, 0);
  return {
      mx::slice(rows, {keep, 0}, {keep + tail, rows.shape(1)}),
      ids_after(w, keep)};
}

std::vector<int64_t> PleLayer::ids_after(const state::PleWindow& w, int keep)
    const {
  auto ids = w.before.ids;
  ids.insert(ids.end(), w.ids.begin(), w.ids.begin() + keep);
  return {ids.end() - history_, ids.end()};
}

} // namespace qwenmtp::model
