/** The generator of one request and the two ways it is drawn from. */
#pragma once

#include <string>

#include <vector>

#include "sampling/distribution.h"
#include "sampling/pcg64.h"

namespace qwenmtp::sampling {

/** The token that the uniform u draws: the first id, ascending, whose
 * cumulative mass is strictly greater. */
int32_t drawn(const Distribution& distribution, double u);

class Draws {
 public:
  explicit Draws(Pcg64 generator) : generator_(generator) {
  }

  /** One token, always one draw. */
  int32_t token(const Distribution& distribution) {
    return drawn(distribution, uniforms(1)[0]);
  }

  /** The draws of the next n tokens, ahead of their distributions. */
  std::vector<double> uniforms(int n);

  /** True with the given probability, always one draw: uniform <= probability.
   */
  bool accept(double probability);

  const Pcg64& generator() const {
    return generator_;
  }

  /** One letter per draw: 'c' chose a token, 'u' decided an acceptance. */
  const std::string& trace() const {
    return trace_;
  }

 private:
  Pcg64 generator_;
  std::string trace_;
};

} // namespace qwenmtp::sampling
