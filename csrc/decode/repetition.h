/** Finds an answer that only repeats itself, and how much of it may be released
 *  meanwhile. Sees token ids, nothing else. */
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "decode/options.h"

namespace qwenmtp::decode {

struct RepetitionHit {
  std::string reason; // exact_repeated_token_suffix, long_cycle
  int block_tokens;
  int repeats;
  int trimmed_tokens; // tail of the answer to delete
};

class Repetition {
 public:
  explicit Repetition(const RepetitionOptions& options);

  /** Judges the tokens so far; call it with a growing list. */
  std::optional<RepetitionHit> check(const std::vector<int32_t>& tokens);

  /** How many of the tokens may be released now. */
  size_t releasable(const std::vector<int32_t>& tokens) const;

  bool holds_back() const {
    return window_ > 0;
  }

 private:
  std::optional<RepetitionHit> short_block(
      const std::vector<int32_t>& tokens) const;
  std::optional<RepetitionHit> long_cycle(const std::vector<int32_t>& tokens);
  bool loop_forms(const std::vector<int32_t>& tokens) const;

  RepetitionOptions options_;
  size_t window_ = 0;
  // Long cycles: a rolling hash proposes a period, comparisons decide.
  size_t seen_ = 0;
  uint64_t hash_ = 0;
  std::unordered_map<uint64_t, size_t> last_;   // hash -> its last position
  std::vector<std::pair<size_t, size_t>> runs_; // period, tokens that match
};

} // namespace qwenmtp::decode
