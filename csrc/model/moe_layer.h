/** Mixture of experts with a shared expert (model.md 9), in the reference's
 *  order of experts and of summation. */
#pragma once

#include <string>

#include "model/config.h"
#include "model/trace.h"
#include "model/weights.h"

namespace qwenmtp::model {

/** Stacks of all routed experts. */
struct Experts {
  Linear gate; // [E, I, H]
  Linear up;   // [E, I, H]
  Linear down; // [E, H, I]
};

class MoeLayer {
 public:
  MoeLayer(Weights& weights, const Config& config, const std::string& module);

  /** u [n, H] -> [n, H]. */
  mx::array forward(const mx::array& u, const Tracer& trace) const;

 private:
  int top_k_;
  Linear router_; // [E, H]
  Experts experts_;
  Linear shared_gate_;   // [Is, H]
  Linear shared_up_;     // [Is, H]
  Linear shared_down_;   // [H, Is]
  Linear shared_weight_; // [1, H]
};

} // namespace qwenmtp::model
