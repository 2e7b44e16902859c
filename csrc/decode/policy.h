/** How many drafts a round makes: a constant, or the depth that promises the
 *  most tokens per second. Never touches the law, only the speed. */
#pragma once

#include <array>

#include "decode/options.h"

namespace qwenmtp::decode {

/** What one round measured. */
struct RoundCost {
  int depth;
  int tested; // drafts whose acceptance was decided
  int accepted;
  double draft_seconds;  // all drafts together
  double verify_seconds; // one forward of 1 + depth rows
};

class DepthPolicy {
 public:
  DepthPolicy(int depth, bool automatic);

  /** Depth of the next round; 0 only when automatic. Deterministic in the
   *  rounds recorded so far. */
  int next() const;

  /** Tokens a round of this depth is expected to emit. */
  double expected_tokens(int depth) const;

  void record(const RoundCost& round);

 private:
  double seconds(int depth) const;

  int ceiling_;
  bool automatic_;
  int rounds_ = 0;
  std::array<double, kMaxDepth> acceptance_;
  std::array<int, kMaxDepth> tested_{};
  // Seconds of a draft, and of a verify by its depth; 0 is unmeasured.
  double draft_ = 0;
  std::array<double, kMaxDepth + 1> verify_{};
};

} // namespace qwenmtp::decode
