/** Mixture of experts with a shared expert (model.md 9), in the reference's
 *  order of experts and of summation. */
#pragma once

#include <string>

#include "kernels/moe.h"
#include "model/config.h"
#include "model/trace.h"
#include "model/weights.h"

namespace qwenmtp::model {

class MoeLayer {
 public:
  MoeLayer(Weights& weights, const Config& config, const std::string& module);

  /** u [n, H] -> [n, H]. */
  mx::array forward(const mx::array& u, const Tracer& trace) const;

 private:
  kernels::MoeWeights weights_;
};

} // namespace qwenmtp::model
