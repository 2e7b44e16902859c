/** Qwen Sparse Attention (model.md 8): projections, indexer keys, block
 *  selection with its tie rule, attention over the visible rows, output gate.
 *  Each query row is computed on its own, so that a row's bits do not depend
 *  on the rows beside it. */
#pragma once

#include <string>

#include "model/config.h"
#include "model/math.h"
#include "model/trace.h"
#include "model/weights.h"
#include "state/kv_cache.h"

namespace qwenmtp::model {

/** Rotation tables of one forward; every attention layer shares them. */
struct QsaPositions {
  RopeTable rows;   // positions len .. len + n - 1
  RopeTable blocks; // first positions of the blocks that become complete
};

QsaPositions qsa_positions(const Config& config, int len, int n);

class QsaLayer {
 public:
  QsaLayer(
      Weights& weights,
      const Config& config,
      const std::string& module,
      bool one_centred);

  state::KvCache initial_state() const;

  /** u [n, H] -> [n, H]; appends n rows to `cache`. */
  mx::array forward(
      const mx::array& u,
      const QsaPositions& at,
      state::KvCache& cache,
      const Tracer& trace) const;
  /** Only the appends of forward(), for rows whose output nobody reads. */
  void append(const mx::array& u, const QsaPositions& at, state::KvCache& cache)
      const;

 private:
  mx::array attend(
      const mx::array& q,
      const state::KvCache& cache,
      const std::optional<mx::array>& ids,
      int position) const;
  mx::array select(
      const mx::array& iq,
      const state::KvCache& cache,
      int position) const;

  int n_heads_, n_kv_heads_, head_dim_;
  int index_heads_, index_dim_, ratio_, budget_blocks_;
  double eps_;
  mx::Dtype dtype_;
  Linear q_;         // [Hq * 2 * D, H]; a head's query rows, then its gate rows
  Linear k_;         // [Hkv * D, H]
  Linear v_;         // [Hkv * D, H]
  Linear o_;         // [H, Hq * D]
  mx::array q_norm_; // [D], effective
  mx::array k_norm_; // [D], effective
  Linear index_;     // [(index_heads + 1) * Di, H], the key head last
  mx::array index_q_norm_; // [Di], effective
  mx::array index_k_norm_; // [Di], effective
};

} // namespace qwenmtp::model
