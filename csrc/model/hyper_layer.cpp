#include "model/hyper_layer.h"

#include "model/math.h"

namespace qwenmtp::model {

HyperLayer::HyperLayer(
    Weights& weights,
    const Config& config,
    const std::string& module,
    bool one_centred,
    bool is_mixer)
    : count_(config.hc_count),
      eps_(config.rms_norm_eps),
      norm_(
          weights.norm(module + ".hc_norm.weight", config.wide(), one_centred)),
      down_(weights.linear(
          module + ".input_mix_weight_down",
          {config.hc_rank, config.wide()})),
      up_(weights.linear(
          module + ".input_mix_weight_up",
          {config.wide(), config.hc_rank})) {
  if (!is_mixer) {
    inject_ = weights.linear(
        module + ".block_inject_weight",
        {count_, config.wide()});
  }
}

HyperLayer::Read HyperLayer::read(const mx::array& x) const {
  auto share = mx::array(1.0f / static_cast<float>(count_), x.dtype());
  auto z = grouped_rms_norm(x, norm_, count_, eps_);
  auto gate = mx::sigmoid(up_(silu(mx::multiply(down_(z), share))));
  auto streams = mx::split(mx::multiply(gate, z), count_, -1);
  auto sum = streams[0];
  for (int s = 1; s < count_; s++) {
    sum = mx::add(sum, streams[s]);
  }
  Read out{mx::multiply(sum, share), std::nullopt};
  if (inject_) {
    auto g = mx::sigmoid(mx::multiply((*inject_)(z), share));
    out.inject = mx::multiply(g, mx::array(2.0f, x.dtype()));
  }
  return out;
}

mx::array HyperLayer::write(
    const mx::array& x,
    const mx::array& y,
    const mx::array& inject) const {
  auto spread =
      mx::multiply(mx::expand_dims(inject, -1), mx::expand_dims(y, -2));
  return mx::add(x, mx::flatten(spread, -2, -1));
}

} // namespace qwenmtp::model
