#include "sampling/draws.h"

namespace qwenmtp::sampling {

int32_t drawn(const Distribution& distribution, double u) {
  const bool dense = distribution.dense();
  const double whole = dense ? numpy_sum(distribution.mass) : 1.0;
  double total = 0;
  for (double m : distribution.mass) {
    total += m / whole;
  }
  double sum = 0;
  size_t i = 0;
  for (; i + 1 < distribution.mass.size(); i++) {
    sum += distribution.mass[i] / whole;
    if (sum / total > u) {
      break;
    }
  }
  return dense ? static_cast<int32_t>(i) : distribution.ids[i];
}

std::vector<double> Draws::uniforms(int n) {
  std::vector<double> out(n);
  for (double& u : out) {
    trace_ += 'c';
    u = generator_.uniform();
  }
  return out;
}

bool Draws::accept(double probability) {
  trace_ += 'u';
  return generator_.uniform() <= probability;
}

} // namespace qwenmtp::sampling
