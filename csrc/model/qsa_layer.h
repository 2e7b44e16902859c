/** Qwen Sparse Attention (model.md 8): projections, indexer keys, block
 *  selection with its tie rule, attention over the visible rows, output gate.
 */
#pragma once

#include <string>
#include <vector>

#include "kernels/qsa.h"
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
  void append(const kernels::QsaPrepared& rows, state::KvCache& cache) const;

  int head_dim_, index_dim_;
  mx::Dtype dtype_;
  Linear in_;    // [k; v; q with its gate]
  Linear index_; // [(Hi + 1) * Di, H]
  Linear o_;     // [H, Hq * D]
  kernels::QsaWeights weights_;
};

} // namespace qwenmtp::model
