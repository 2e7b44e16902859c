/** Geometry of a qwen4_exp text model: every number the network needs, checked
 *  once. Reads no file and knows no JSON; bindings fill it from config.json. */
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace qwenmtp::model {

enum class LayerType { linear_attention, full_attention };

/** Static YaRN, for contexts beyond the trained one. */
struct Yarn {
  double factor = 1;
  int original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention_factor;
  double mscale = 0;
  double mscale_all_dim = 0;
};

struct Rope {
  double theta = 1e7;
  int rotary_dim = 64;
  std::optional<Yarn> yarn;
};

struct Config {
  int vocab_size = 248320;
  int hidden_size = 0; // H
  std::vector<LayerType> layer_types;
  int max_position = 32768;
  double rms_norm_eps = 1e-6;

  int n_heads = 0;    // Hq
  int n_kv_heads = 0; // Hkv
  int head_dim = 256; // D
  Rope rope;

  int index_heads = 4;
  int index_dim = 128;     // Di
  int index_budget = 2048; // tokens
  int index_ratio = 4;     // c, tokens a block

  int gdn_key_heads = 0;   // Hk
  int gdn_value_heads = 0; // Hv
  int gdn_key_dim = 128;   // Dk
  int gdn_value_dim = 128; // Dv
  int gdn_conv_kernel = 4;

  int n_experts = 512; // E
  int top_k = 10;      // K
  int expert_dim = 0;  // I
  int shared_dim = 0;

  int hc_count = 4;  // C
  int hc_rank = 320; // R

  std::vector<int> ple_layers; // zero-based, ascending
  int ple_dim = 0;
  int ple_conv_kernel = 4;
  int ngram_size = 3;
  int heads_per_ngram = 8;
  int64_t ngram_vocab_base = 20000000;
  int64_t ngram_vocab_divisor = 128;
  int64_t ngram_seed = 1234;
  int64_t eos = -1; // segments n-grams; not the chat stop

  int n_layers() const {
    return static_cast<int>(layer_types.size());
  }
  /** Width of the residual streams, C * H. */
  int wide() const {
    return hc_count * hidden_size;
  }
  int gdn_channels() const {
    return 2 * gdn_key_heads * gdn_key_dim + gdn_value_heads * gdn_value_dim;
  }
  /** Blocks that a query may select, K of model.md 8.3. */
  int index_blocks() const {
    return index_budget / index_ratio;
  }
  int ngram_heads() const {
    return (ngram_size - 1) * heads_per_ngram;
  }
  int ple_conv_rows() const {
    return (ple_conv_kernel - 1) * ngram_size;
  }
  /** Throws ModelFormatError naming the field, its value and the rule. */
  void validate() const;
};

} // namespace qwenmtp::model
