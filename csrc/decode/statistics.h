/** Counters and times of one request (decode.md 9). Plain data. */
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "decode/options.h"
#include "ple/stager_stats.h"

namespace qwenmtp::decode {

using ByDepth = std::array<int64_t, kMaxDepth>;
using MassByDepth = std::array<double, kMaxDepth>;

struct CopyStatistics {
  bool active = false;
  int64_t probes = 0;
  int64_t rounds = 0;
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
  int64_t accepted_blocks = 0;
  int64_t suspensions = 0;
  bool suspended = false;
  int64_t backoff_tokens = 0;
  std::string disabled_reason;
};

struct RepetitionStatistics {
  std::string reason; // empty: not triggered
  int64_t block_tokens = 0;
  int64_t repeats = 0;
  int64_t trimmed_tokens = 0;
  int64_t raw_tokens = 0;
};

/** Seconds. A phase's time includes the evaluation it waits for. */
struct Times {
  double prefill = 0; // trunk and history of the prompt
  double prefill_history = 0;
  double decode = 0; // first draw to the last token; no final commit
  double draft = 0;
  double verify = 0;
  double accept = 0;
  double bonus = 0;
  double commit = 0;
  double rollback = 0;
  double repair = 0;
  double final_commit = 0;
};

struct Statistics {
  /** How rounds run: ar, capture_commit or reforward. */
  std::string lane;
  int64_t rounds = 0;
  /** Times that the host waited for the device, the prompt's included. */
  int64_t syncs = 0;
  int64_t drafted_tokens = 0;
  int64_t accepted_drafts = 0;
  int64_t rejected_drafts = 0;
  ByDepth drafted_by_depth{};
  /** Drafts whose acceptance was tested: the divisor of the two below. */
  ByDepth tested_by_depth{};
  ByDepth accepted_by_depth{};
  MassByDepth accept_probability_sum_by_depth{};
  int64_t bonus_tokens = 0;
  int64_t correction_tokens = 0;
  int64_t deferred_correction_repairs = 0;
  int64_t capture_commits = 0;
  int64_t reforward_repairs = 0;
  int64_t verify_calls = 0;
  int64_t history_live_resets = 0;
  /** Rounds of the automatic depth by chosen depth, 0 included, and the tokens
   *  it expected of them. */
  std::array<int64_t, kMaxDepth + 1> rounds_by_depth{};
  double expected_tokens = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  CopyStatistics copy;
  RepetitionStatistics repetition;
  /** N-gram rows, of this request's calls alone. */
  ple::StagerStats rows;
  Times seconds;
};

/** Adds the time of a scope to a counter. */
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds)
      : seconds_(seconds), start_(std::chrono::steady_clock::now()) {
  }
  ~Stopwatch() {
    seconds_ += elapsed();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  double elapsed() const {
    return std::chrono::duration<double>(
               std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_;
};

} // namespace qwenmtp::decode
