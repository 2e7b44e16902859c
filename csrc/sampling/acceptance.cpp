#include "sampling/acceptance.h"

#include <algorithm>
#include <cmath>

namespace qwenmtp::sampling {

namespace {

/** Calls visit(token, p, q) for the union of both supports, ids ascending. */
template <typename Visit>
void for_union(const Distribution& p, const Distribution& q, Visit visit) {
  size_t i = 0;
  size_t j = 0;
  while (i < p.ids.size() || j < q.ids.size()) {
    const bool take_p =
        j == q.ids.size() || (i < p.ids.size() && p.ids[i] <= q.ids[j]);
    const bool take_q =
        i == p.ids.size() || (j < q.ids.size() && q.ids[j] <= p.ids[i]);
    const int32_t token = take_p ? p.ids[i] : q.ids[j];
    visit(token, take_p ? p.mass[i] : 0.0, take_q ? q.mass[j] : 0.0);
    i += take_p;
    j += take_q;
  }
}

std::vector<double> widened(const Distribution& d, size_t size) {
  if (d.dense()) {
    return d.mass;
  }
  std::vector<double> out(size, 0.0);
  for (size_t i = 0; i < d.ids.size(); i++) {
    out[d.ids[i]] = d.mass[i];
  }
  return out;
}

bool has_mass(double total) {
  return std::isfinite(total) && total > 0;
}

void divide(std::vector<double>& values, double total) {
  for (double& v : values) {
    v /= total;
  }
}

Distribution dense_residual(const Distribution& p, const Distribution& q) {
  const size_t size = p.dense() ? p.mass.size() : q.mass.size();
  Distribution out{{}, widened(p, size)};
  const std::vector<double> other = widened(q, size);
  for (size_t i = 0; i < size; i++) {
    out.mass[i] = std::max(out.mass[i] - other[i], 0.0);
  }
  double total = numpy_sum(out.mass);
  if (!has_mass(total)) {
    out.mass = widened(p, size);
    total = numpy_sum(out.mass);
  }
  divide(out.mass, total);
  return out;
}

} // namespace

double acceptance_probability(
    const Distribution& p,
    const Distribution& q,
    int32_t token) {
  const double target = p[token];
  const double proposal = q[token];
  if (proposal <= 0) {
    return target > 0 ? 1.0 : 0.0;
  }
  return std::min(1.0, target / proposal);
}

Distribution residual(const Distribution& p, const Distribution& q) {
  if (p.dense() || q.dense()) {
    return dense_residual(p, q);
  }
  Distribution out;
  for_union(p, q, [&](int32_t token, double target, double proposal) {
    const double left = target - proposal;
    if (left > 0) {
      out.ids.push_back(token);
      out.mass.push_back(left);
    }
  });
  if (!has_mass(numpy_sum(out.mass))) {
    return p;
  }
  divide(out.mass, numpy_sum(out.mass));
  divide(out.mass, numpy_sum(out.mass));
  return out;
}

} // namespace qwenmtp::sampling
