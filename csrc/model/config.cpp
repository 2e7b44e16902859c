#include "model/config.h"

#include <algorithm>

#include "base/error.h"

namespace qwenmtp::model {

namespace {

void require(bool ok, const std::string& field, auto value, const char* rule) {
  if (!ok) {
    throw ModelFormatError(
        "[model.config] " + field + " is " + std::to_string(value) +
        ", expected " + rule);
  }
}

void require_positive(
    std::initializer_list<std::pair<const char*, int64_t>> fields) {
  for (const auto& [field, value] : fields) {
    require(value > 0, field, value, "a positive number");
    require(value < (int64_t{1} << 31), field, value, "less than 2^31");
  }
}

void validate_ple(const Config& c) {
  require(c.eos >= 0, "eos_token_id", c.eos, "an id, since PLE is on");
  require(c.eos < c.vocab_size, "eos_token_id", c.eos, "below vocab_size");
  require_positive(
      {{"ple_embed_dim", c.ple_dim},
       {"ple_conv_kernel_size", c.ple_conv_kernel},
       {"heads_per_ngram", c.heads_per_ngram},
       {"ngram_vocab_size_base", c.ngram_vocab_base},
       {"make_ngram_vocab_size_divisible_by", c.ngram_vocab_divisor}});
  require(c.ngram_size >= 2, "ngram_size", c.ngram_size, "at least 2");
  require(
      c.ple_dim % c.ngram_heads() == 0,
      "ple_embed_dim",
      c.ple_dim,
      "a multiple of (ngram_size - 1) * heads_per_ngram");
  for (int layer : c.ple_layers) {
    require(
        layer >= 0 && layer < c.n_layers() &&
            c.layer_types[layer] == LayerType::linear_attention,
        "ple_layer_ids entry",
        layer + 1,
        "the one-based number of a linear-attention layer");
  }
}

} // namespace

void Config::validate() const {
  require_positive(
      {{"vocab_size", vocab_size},
       {"hidden_size", hidden_size},
       {"num_hidden_layers", n_layers()},
       {"max_position_embeddings", max_position},
       {"num_attention_heads", n_heads},
       {"num_key_value_heads", n_kv_heads},
       {"head_dim", head_dim},
       {"indexer_n_heads", index_heads},
       {"indexer_head_dim", index_dim},
       {"indexer_budget", index_budget},
       {"indexer_compress_ratio", index_ratio},
       {"linear_num_key_heads", gdn_key_heads},
       {"linear_num_value_heads", gdn_value_heads},
       {"linear_key_head_dim", gdn_key_dim},
       {"linear_value_head_dim", gdn_value_dim},
       {"num_experts", n_experts},
       {"num_experts_per_tok", top_k},
       {"moe_intermediate_size", expert_dim},
       {"shared_expert_intermediate_size", shared_dim},
       {"hc_lowrank", hc_rank}});
  require(rms_norm_eps > 0, "rms_norm_eps", rms_norm_eps, "above 0");
  require(
      hc_count > 1 && hc_count <= 8,
      "hc_count",
      hc_count,
      "2 to 8 streams");
  require(
      gdn_conv_kernel > 1,
      "linear_conv_kernel_dim",
      gdn_conv_kernel,
      "at least 2");
  require(
      n_heads % n_kv_heads == 0,
      "num_attention_heads",
      n_heads,
      "a multiple of num_key_value_heads");
  require(
      gdn_value_heads % gdn_key_heads == 0,
      "linear_num_value_heads",
      gdn_value_heads,
      "a multiple of linear_num_key_heads");
  require(
      top_k <= n_experts,
      "num_experts_per_tok",
      top_k,
      "at most num_experts");
  require(
      index_budget % index_ratio == 0,
      "indexer_budget",
      index_budget,
      "a multiple of indexer_compress_ratio");
  require(
      rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0 &&
          rope.rotary_dim <= std::min(head_dim, index_dim),
      "rotary dimension",
      rope.rotary_dim,
      "even, and at most head_dim and indexer_head_dim");
  require(rope.theta > 1, "rope_theta", rope.theta, "above 1");
  if (!ple_layers.empty()) {
    validate_ple(*this);
  }
}

} // namespace qwenmtp::model
