/** Block verification: the accept coins of one window, from all its rows at
 *  once. Same draws and same law as the per-token coins, longer accepted runs.
 *  Law: Sun et al. 2024, arXiv 2403.10444, with the realised reach as the cap
 * of every look-ahead (what makes depth 3 exact). */
#pragma once

#include <span>
#include <vector>

#include "sampling/distribution.h"

namespace qwenmtp::sampling {

class BlockVerifier {
 public:
  /** p, q: one row per draft. */
  BlockVerifier(
      std::span<const Distribution> p,
      std::span<const Distribution> q,
      std::span<const int32_t> drafts);

  /** Probability that draft d is accepted once all before it were. */
  double coin(size_t d) const {
    return steps_[d].coin;
  }

  /** Where the correction comes from when draft d is the first rejected. */
  Distribution residual(size_t d) const;

 private:
  struct Step {
    double coin;
    double credit;       // expected reach before this draft: scales p
    double reach_before; // realised reach two drafts back: scales q
  };

  double ratio(size_t d, int32_t token) const;
  double realised(size_t d, double budget, double reach) const;

  std::vector<Distribution> p_;
  std::vector<Distribution> q_;
  std::vector<int32_t> drafts_;
  std::vector<Step> steps_;
};

} // namespace qwenmtp::sampling
