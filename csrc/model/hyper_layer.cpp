#include "model/hyper_layer.h"

namespace qwenmtp::model {

kernels::HyperWeights hyper_weights(
    Weights& w,
    const Config& config,
    const std::string& module,
    bool one_centred,
    bool is_mixer) {
  auto matrix = [&](const char* leaf, int out, int in) {
    return w.linear(module + leaf, {out, in}).matrix();
  };
  kernels::HyperWeights weights{
      w.norm(module + ".hc_norm.weight", config.wide(), one_centred),
      matrix(".input_mix_weight_down", config.hc_rank, config.wide()),
      matrix(".input_mix_weight_up", config.wide(), config.hc_rank),
      std::nullopt,
      config.hc_count,
      static_cast<float>(config.rms_norm_eps)};
  if (!is_mixer) {
    weights.inject =
        matrix(".block_inject_weight", config.hc_count, config.wide());
  }
  return weights;
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
