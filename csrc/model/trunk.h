/** The network: embedding, all decoder layers, final mixer and LM head. Rows
 *  in, rows out; builds graphs and evaluates nothing. Knows no sampling. */
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/embedding.h"
#include "model/gdn_layer.h"
#include "model/hyper_layer.h"
#include "model/moe_layer.h"
#include "model/ple_layer.h"
#include "model/ple_table.h"
#include "model/qsa_layer.h"
#include "model/trace.h"
#include "model/weights.h"
#include "ple/open.h"
#include "state/trunk_state.h"

namespace qwenmtp::model {

/** Which rows of a forward get logits. */
enum class LogitRows { none, last, all };

struct TrunkOutput {
  std::optional<mx::array> logits; // [n, V], [1, V] or none
  mx::array hidden; // [n, C * H], the streams before the final mixer
};

class Trunk {
 public:
  /** Reads every trunk tensor of `weights`; opens the n-gram tables. */
  Trunk(const Config& config, Weights& weights, const ple::OpenOptions& ple);

  state::TrunkState initial_state() const;

  /** Forwards n >= 1 tokens. With `open_window`, the rows stay provisional
   *  until commit(); else they are final. Throws InvalidArgument for an id out
   *  of range or a full context, PleReadError; the state is then unchanged. */
  TrunkOutput forward(
      std::span<const int32_t> ids,
      state::TrunkState& state,
      LogitRows which,
      bool open_window,
      const Tracer& trace = Tracer()) const;

  /** Keeps the first `keep` rows of the open window: the state equals, bit for
   *  bit, one that never saw the others. 1 <= keep <= window. */
  void commit(state::TrunkState& state, int keep) const;

  /** Leaves no rows waiting in any layer: the state can then be saved. */
  void settle(state::TrunkState& state) const;

  /** A hint: `ids` may be the next forward's. Starts reading their n-gram rows;
   *  never waits. Throws InvalidArgument for an id out of range. */
  void expect(std::span<const int32_t> ids, const state::TrunkState& state)
      const;

  /** The same for ids that will follow `before`, ahead of any state. */
  void expect_behind(
      std::span<const int32_t> before,
      std::span<const int32_t> ids) const;
  /** One for each n-gram layer, in layer order. */
  std::vector<ple::Stager*> stagers() const;

  const Embedding& embedding() const {
    return embed_;
  }
  /** u [n, H] -> [n, V]. */
  mx::array lm_head(const mx::array& u) const {
    return head_(u);
  }
  const Config& config() const {
    return config_;
  }

 private:
  struct Layer {
    std::optional<PleLayer> ple;
    kernels::HyperWeights attn_hyper;
    std::optional<GdnLayer> gdn;
    std::optional<QsaLayer> qsa;
    kernels::HyperWeights mlp_hyper;
    MoeLayer moe;
  };
  Layer load_layer(Weights& weights, int index, const ple::OpenOptions& ple)
      const;

  Config config_;
  Embedding embed_; // [V, H]
  Linear head_;     // [V, H]
  kernels::HyperWeights mixer_;
  std::vector<Layer> layers_;
};

/** The n-gram tables of a checkpoint, one for each n-gram layer. */
std::vector<NgramTable> find_ngram_tables(
    Weights& weights,
    const Config& config);

/** Whether norm weights of `layout` are stored as 1 + w. */
bool one_centred(Layout layout);

} // namespace qwenmtp::model
