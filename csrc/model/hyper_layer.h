/** Hyper-connections (model.md 6): reading one hidden row out of C residual
 *  streams, and writing a layer's output back. */
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "kernels/hyper.h"
#include "model/config.h"
#include "model/weights.h"

namespace qwenmtp::model {

/** Weights of one read. `module` names the tensors; a mixer has no inject
 *  matrix. */
kernels::HyperWeights hyper_weights(
    Weights& weights,
    const Config& config,
    const std::string& module,
    bool one_centred,
    bool is_mixer);

/** The streams x [n, C * H] on their way through the layers. A layer's output
 *  waits here until the next read, which writes it back in the same kernel. */
class Streams {
 public:
  explicit Streams(mx::array x) : x_(std::move(x)) {
  }

  kernels::HyperRead read(const kernels::HyperWeights& weights);
  /** x[s] += inject[s] * y, for y [n, H] and the inject of the last read. */
  void write(mx::array y, mx::array inject);
  void add(const mx::array& a);
  /** The streams with everything written. */
  const mx::array& value();

 private:
  mx::array x_;
  std::optional<std::pair<mx::array, mx::array>> waiting_; // y, inject
};

} // namespace qwenmtp::model
