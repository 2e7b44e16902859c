/** Hyper-connections (model.md 6): reading one hidden row out of C residual
 *  streams, and writing a layer's output back. */
#pragma once

#include <optional>
#include <string>

#include "model/config.h"
#include "model/weights.h"

namespace qwenmtp::model {

class HyperLayer {
 public:
  /** `module` names the tensors; a mixer has no inject matrix. */
  HyperLayer(
      Weights& weights,
      const Config& config,
      const std::string& module,
      bool one_centred,
      bool is_mixer);

  struct Read {
    mx::array mix;                   // [n, H]
    std::optional<mx::array> inject; // [n, C]; absent in mixers
  };
  /** x [n, C * H], the un-normalised streams. */
  Read read(const mx::array& x) const;
  /** x[s] += inject[s] * y, for y [n, H]. */
  mx::array write(
      const mx::array& x,
      const mx::array& y,
      const mx::array& inject) const;

 private:
  int count_;
  double eps_;
  mx::array norm_;               // [C * H], effective
  Linear down_;                  // [R, C * H]
  Linear up_;                    // [C * H, R]
  std::optional<Linear> inject_; // [C, C * H]
};

} // namespace qwenmtp::model
