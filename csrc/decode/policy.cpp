#include "decode/policy.h"

#include <algorithm>

namespace qwenmtp::decode {

namespace {

constexpr double kPriorAcceptance = 0.7;
/** Observations that the prior counts for. */
constexpr double kPriorWeight = 2;
/** Least weight of a new observation in the running averages. */
constexpr double kAcceptanceStep = 0.04;
constexpr double kCostStep = 0.2;
/** Cost of one more row where only other widths were measured. */
constexpr double kRowShare = 0.15;
/** Every so many rounds one is spent on the next deeper depth. */
constexpr int kProbeEvery = 32;

void average(double& value, double sample, double step) {
  value = value == 0 ? sample : value + step * (sample - value);
}

} // namespace

DepthPolicy::DepthPolicy(int depth, bool automatic)
    : ceiling_(depth), automatic_(automatic) {
  acceptance_.fill(kPriorAcceptance);
}

double DepthPolicy::expected_tokens(int depth) const {
  double tokens = 1;
  double reach = 1;
  for (int d = 0; d < depth; d++) {
    reach *= acceptance_[d];
    tokens += reach;
  }
  return tokens;
}

/** Expected seconds of a round; an unmeasured width is estimated from the
 *  nearest measured one. */
double DepthPolicy::seconds(int depth) const {
  for (int distance = 0; distance <= kMaxDepth; distance++) {
    for (int other : {depth - distance, depth + distance}) {
      if (other < 0 || other > kMaxDepth || verify_[other] == 0) {
        continue;
      }
      const double grown = (1 + kRowShare * depth) / (1 + kRowShare * other);
      return verify_[other] * grown + depth * draft_;
    }
  }
  return 1;
}

int DepthPolicy::next() const {
  if (!automatic_) {
    return ceiling_;
  }
  if (rounds_ == 0) { // nothing is measured: the cheapest round that drafts
    return 1;
  }
  int best = 0;
  for (int depth = 1; depth <= ceiling_; depth++) {
    if (expected_tokens(depth) / seconds(depth) >
        expected_tokens(best) / seconds(best)) {
      best = depth;
    }
  }
  const bool probe = rounds_ % kProbeEvery == kProbeEvery - 1;
  return probe ? std::min(best + 1, ceiling_) : best;
}

void DepthPolicy::record(const RoundCost& round) {
  rounds_++;
  for (int d = 0; d < round.tested; d++) {
    const double hit = d < round.accepted ? 1.0 : 0.0;
    const double step =
        std::max(kAcceptanceStep, 1 / (kPriorWeight + ++tested_[d]));
    acceptance_[d] += step * (hit - acceptance_[d]);
  }
  if (round.depth > 0) {
    average(draft_, round.draft_seconds / round.depth, kCostStep);
  }
  average(verify_[round.depth], round.verify_seconds, kCostStep);
}

} // namespace qwenmtp::decode
