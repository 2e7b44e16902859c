#include "bindings/model_values.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"

namespace nb = nanobind;

namespace qwenmtp::bindings {

namespace {

template <typename T>
void set(T& field, const nb::dict& from, const char* name) {
  field = nb::cast<T>(from[name]);
}

void set_int(int& field, const nb::dict& from, const char* name) {
  auto value = nb::cast<int64_t>(from[name]);
  if (value < INT32_MIN || value > INT32_MAX) {
    throw ModelFormatError(
        "[model.config] " + std::string(name) + " is " + std::to_string(value) +
        ", expected a 32-bit number");
  }
  field = static_cast<int>(value);
}

model::Layout layout_from(const std::string& name) {
  if (name == "released") {
    return model::Layout::released;
  }
  return name == "pack" ? model::Layout::pack : model::Layout::vlm;
}

std::map<std::string, model::TensorRef> tensors_from(
    const std::vector<TensorRow>& rows) {
  std::map<std::string, model::TensorRef> out;
  for (const auto& [name, dtype, dims, file, offset] : rows) {
    mlx::core::Shape shape;
    for (int64_t d : dims) {
      if (d < 0 || d > INT32_MAX) {
        throw ModelFormatError(
            "[model.open] tensor " + name + ": dimension " + std::to_string(d) +
            ", expected at most 2^31 - 1");
      }
      shape.push_back(static_cast<int>(d));
    }
    out.emplace(name, model::TensorRef{dtype, shape, file, offset});
  }
  return out;
}

std::map<std::string, model::Quant> widths_from(const Widths& quant) {
  std::map<std::string, model::Quant> widths;
  for (const auto& [module, width] : quant) {
    widths[module] = {width.first, width.second};
  }
  return widths;
}

} // namespace

model::Config to_config(const nb::dict& d) {
  model::Config c;
  set_int(c.vocab_size, d, "vocab_size");
  set_int(c.hidden_size, d, "hidden_size");
  set_int(c.max_position, d, "max_position");
  set_int(c.n_heads, d, "n_heads");
  set_int(c.n_kv_heads, d, "n_kv_heads");
  set_int(c.head_dim, d, "head_dim");
  set_int(c.index_heads, d, "index_heads");
  set_int(c.index_dim, d, "index_dim");
  set_int(c.index_budget, d, "index_budget");
  set_int(c.index_ratio, d, "index_ratio");
  set_int(c.gdn_key_heads, d, "gdn_key_heads");
  set_int(c.gdn_value_heads, d, "gdn_value_heads");
  set_int(c.gdn_key_dim, d, "gdn_key_dim");
  set_int(c.gdn_value_dim, d, "gdn_value_dim");
  set_int(c.gdn_conv_kernel, d, "gdn_conv_kernel");
  set_int(c.n_experts, d, "n_experts");
  set_int(c.top_k, d, "top_k");
  set_int(c.expert_dim, d, "expert_dim");
  set_int(c.shared_dim, d, "shared_dim");
  set_int(c.hc_count, d, "hc_count");
  set_int(c.hc_rank, d, "hc_rank");
  set_int(c.ple_dim, d, "ple_dim");
  set_int(c.ple_conv_kernel, d, "ple_conv_kernel");
  set_int(c.ngram_size, d, "ngram_size");
  set_int(c.heads_per_ngram, d, "heads_per_ngram");
  set_int(c.rope.rotary_dim, d, "rotary_dim");
  set(c.rope.theta, d, "rope_theta");
  set(c.rms_norm_eps, d, "rms_norm_eps");
  set(c.ngram_vocab_base, d, "ngram_vocab_base");
  set(c.ngram_vocab_divisor, d, "ngram_vocab_divisor");
  set(c.ngram_seed, d, "ngram_seed");
  set(c.eos, d, "eos");
  for (auto layer : nb::cast<std::vector<int64_t>>(d["ple_layers"])) {
    c.ple_layers.push_back(static_cast<int>(layer));
  }
  for (bool full : nb::cast<std::vector<bool>>(d["full_attention"])) {
    c.layer_types.push_back(
        full ? model::LayerType::full_attention
             : model::LayerType::linear_attention);
  }
  if (d.contains("yarn")) {
    auto y = nb::cast<nb::dict>(d["yarn"]);
    auto& yarn = c.rope.yarn.emplace();
    set(yarn.factor, y, "factor");
    set_int(yarn.original_max_position, y, "original_max_position");
    set(yarn.beta_fast, y, "beta_fast");
    set(yarn.beta_slow, y, "beta_slow");
    set(yarn.truncate, y, "truncate");
    set(yarn.mscale, y, "mscale");
    set(yarn.mscale_all_dim, y, "mscale_all_dim");
    if (!y["attention_factor"].is_none()) {
      yarn.attention_factor = nb::cast<double>(y["attention_factor"]);
    }
  }
  return c;
}

model::Weights to_weights(
    const std::string& layout,
    std::vector<std::string> files,
    const std::vector<TensorRow>& tensors,
    const Widths& quant,
    bool float32,
    std::atomic<uint64_t>* bytes_read) {
  return {
      layout_from(layout),
      std::move(files),
      tensors_from(tensors),
      widths_from(quant),
      float32 ? mlx::core::float32 : mlx::core::bfloat16,
      bytes_read};
}

model::Weights to_weights_without_values(
    std::vector<std::string> files,
    const std::vector<TensorRow>& tensors,
    std::pair<int, int> width) {
  return model::Weights::without_values(
      std::move(files),
      tensors_from(tensors),
      {width.first, width.second},
      mlx::core::bfloat16);
}

} // namespace qwenmtp::bindings
