/** Prompt lookup (decode.md 6): proposes the prompt's own continuation of the
 *  last tokens as a block of drafts, and backs off when that does not pay. */
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "decode/statistics.h"

namespace qwenmtp::decode {

class ContextCopy {
 public:
  explicit ContextCopy(std::span<const int32_t> prompt);

  /** Block to try after `tokens` (the completion, primary included), at most
   *  `room` long; empty when nothing fits or copying is suspended. */
  std::span<const int32_t> propose(
      std::span<const int32_t> tokens,
      size_t room,
      CopyStatistics& stats);

  /** Learns from a committed block; `emitted` counts the completion after it.
   */
  void record(
      size_t accepted,
      size_t drafted,
      size_t emitted,
      CopyStatistics& stats);

  bool suspended(size_t emitted) const {
    return emitted < suspended_until_;
  }
  int backoff() const {
    return backoff_;
  }

 private:
  struct Match {
    size_t end; // of the gram in the prompt: where its continuation starts
    size_t extension;
  };
  bool find(std::span<const int32_t> tokens, Match& best) const;

  std::vector<int32_t> prompt_;
  // Positions behind equal-hash grams form chains, newest first.
  std::unordered_map<uint64_t, uint32_t> newest_;
  std::vector<uint32_t> older_; // [P + 1]; 0 ends a chain
  double average_;
  int seen_ = 0;
  size_t suspended_until_ = 0;
  int backoff_;
};

} // namespace qwenmtp::decode
