#include "model/hyper_layer.h"

namespace qwenmtp::model {

kernels::HyperWeights hyper_weights(
    Weights& w,
    const Config& config,
    const std::string& module,
    bool one_centred,
    bool is_mixer) {
  std::vector<std::pair<std::string, int>> low = {
      {module + ".input_mix_weight_down", config.hc_rank}};
  if (!is_mixer) {
    low.emplace_back(module + ".block_inject_weight", config.hc_count);
  }
  const int zeros = 8 - (is_mixer ? 0 : config.hc_count);
  return {
      w.norm(module + ".hc_norm.weight", config.wide(), one_centred),
      w.stacked(low, config.wide(), zeros).matrix(),
      w.linear(module + ".input_mix_weight_up", {config.wide(), config.hc_rank})
          .matrix(),
      !is_mixer,
      config.hc_count,
      static_cast<float>(config.rms_norm_eps)};
}

kernels::HyperRead Streams::read(const kernels::HyperWeights& weights) {
  if (!waiting_) {
    return kernels::hyper_read(x_, weights);
  }
  auto [y, inject] = *std::exchange(waiting_, std::nullopt);
  auto r = kernels::hyper_write_read(x_, y, inject, weights);
  x_ = r.x;
  return r.read;
}

void Streams::write(mx::array y, mx::array inject) {
  value();
  waiting_.emplace(std::move(y), std::move(inject));
}

void Streams::add(const mx::array& a) {
  x_ = mx::add(value(), a);
}

const mx::array& Streams::value() {
  if (waiting_) {
    auto [y, inject] = *std::exchange(waiting_, std::nullopt);
    x_ = kernels::hyper_write(x_, y, inject);
  }
  return x_;
}

} // namespace qwenmtp::model
