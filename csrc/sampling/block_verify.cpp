#include "sampling/block_verify.h"

#include <algorithm>
#include <numeric>

namespace qwenmtp::sampling {

namespace {

/** Positive entries by id, divided once by their sum. */
Distribution prepared(const Distribution& d) {
  Distribution out;
  for (size_t i = 0; i < d.mass.size(); i++) {
    if (d.mass[i] > 0) {
      out.ids.push_back(d.dense() ? static_cast<int32_t>(i) : d.ids[i]);
      out.mass.push_back(d.mass[i]);
    }
  }
  const double total = numpy_sum(out.mass);
  for (double& m : out.mass) {
    m /= total;
  }
  return out;
}

/** Smallest level >= 0 with sum(q * min(cap, base + level)) = target. */
double water_level(
    std::span<const double> q,
    std::span<const double> base,
    double cap,
    double target) {
  const size_t n = q.size();
  std::vector<double> terms(n);
  for (size_t i = 0; i < n; i++) {
    terms[i] = q[i] * std::min(cap, base[i]);
  }
  double value = numpy_sum(terms);
  if (value >= target) {
    return 0;
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return cap - base[a] < cap - base[b];
  });
  const auto edge = [&](size_t i) { return cap - base[order[i]]; };
  size_t i = 0;
  while (i < n && edge(i) <= 0) {
    i++;
  }
  std::vector<double> open;
  for (size_t j = i; j < n; j++) {
    open.push_back(q[order[j]]);
  }
  double active = numpy_sum(open);
  double level = 0;
  while (i < n && active > 0) {
    const double here = edge(i);
    const double gain = active * (here - level);
    if (value + gain >= target) {
      break;
    }
    value += gain;
    level = here;
    for (; i < n && edge(i) == here; i++) {
      active -= q[order[i]];
    }
  }
  return active > 0 ? level + (target - value) / active : level;
}

} // namespace

BlockVerifier::BlockVerifier(
    std::span<const Distribution> p,
    std::span<const Distribution> q,
    std::span<const int32_t> drafts)
    : drafts_(drafts.begin(), drafts.end()) {
  for (size_t d = 0; d < drafts.size(); d++) {
    p_.push_back(prepared(p[d]));
    q_.push_back(prepared(q[d]));
  }
  double credit = 1;
  double reach = 1;
  double reach_before = 1;
  for (size_t d = 0; d < drafts.size(); d++) {
    const double nominal = std::min(1.0, credit * ratio(d, drafts_[d]));
    const double budget = std::min(reach, nominal);
    const double next = std::min(reach, realised(d, budget, reach));
    const double coin = reach <= 0 ? 1.0 : std::min(1.0, next / reach);
    steps_.push_back({coin, credit, reach_before});
    credit = budget;
    reach_before = reach;
    reach = next;
  }
}

double BlockVerifier::ratio(size_t d, int32_t token) const {
  const double p = p_[d][token];
  const double q = q_[d][token];
  if (q <= 0) {
    return p > 0 ? 1.0 : 0.0;
  }
  return p / q;
}

/** The reach after draft d: its budget, spent on the continuations that the
 *  target likes, as far as the next draft's row shows them. */
double BlockVerifier::realised(size_t d, double budget, double reach) const {
  if (d + 1 == drafts_.size()) {
    return budget;
  }
  if (budget >= reach) {
    return reach;
  }
  const Distribution& q = q_[d + 1];
  std::vector<double> base(q.ids.size());
  double own = 0;
  for (size_t i = 0; i < base.size(); i++) {
    base[i] = std::min(1.0, budget * (p_[d + 1][q.ids[i]] / q.mass[i]));
    if (q.ids[i] == drafts_[d + 1]) {
      own = base[i];
    }
  }
  return std::min(reach, own + water_level(q.mass, base, reach, budget));
}

Distribution BlockVerifier::residual(size_t d) const {
  const Distribution p = prepared(p_[d]);
  const Step& step = steps_[d];
  std::vector<int32_t> ids;
  std::set_union(
      p.ids.begin(),
      p.ids.end(),
      q_[d].ids.begin(),
      q_[d].ids.end(),
      std::back_inserter(ids));
  Distribution left;
  for (int32_t token : ids) {
    const double mass =
        step.credit * p[token] - step.reach_before * q_[d][token];
    if (mass > 0) {
      left.ids.push_back(token);
      left.mass.push_back(mass);
    }
  }
  return prepared(left.ids.empty() ? p : prepared(left));
}

} // namespace qwenmtp::sampling
