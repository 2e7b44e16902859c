/** Everything one request may choose, with the reference's defaults. Values
 *  only; whoever fills it has validated the ranges. */
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "sampling/row.h"

namespace qwenmtp::decode {

constexpr int kMaxDepth = 5;

/** How a rejected window is repaired. The lanes have one law and different
 *  streams: only capture-commit defers a sampled correction. */
enum class Lane { capture_commit, reforward };

/** What the draft head remembers: every committed token, or one round. */
enum class History { committed, cycle };

/** What waits while a loop forms at the tail: nothing, its window, or always
 *  the window. */
enum class Holdback { off, candidate, strict };

struct RepetitionOptions {
  bool armed = false;
  Holdback holdback = Holdback::candidate;
  int min_tokens = 768;
  int min_repeated_tokens = 192;
  int min_repeats = 4;
  int min_block_tokens = 1;
  int max_block_tokens = 96;
  int max_cycle_tokens = 8192;
  int min_cycle_copies = 3;
  int min_cycle_span_tokens = 512;
};

struct PrefillOptions {
  /** Rows per forward of the prompt's body; 0 forwards it whole. */
  int chunk = 2048;
  /** Rows of a prompt that the draft history keeps, its last ones; 0 keeps
   *  all. */
  int history_window = 0;
  /** A suffix behind a restored prefix is one forward up to this length. */
  int fused_suffix = 512;
  /** Lengths at which a boundary is recorded, ascending; a forward ends at each
   *  that lies in the prompt's body. */
  std::vector<int> boundaries;
};

struct Options {
  sampling::Params target;
  /** nullopt mirrors the target without its penalties. */
  std::optional<sampling::Params> draft;
  /** 32-bit words, least significant first. */
  std::vector<uint32_t> seed;
  int max_tokens = 0;
  std::unordered_set<int32_t> stops;

  /** False is plain autoregression: no drafts, no history. */
  bool speculate = true;
  /** 1..kMaxDepth; the ceiling of auto_depth. */
  int depth = 3;
  bool auto_depth = false;
  Lane lane = Lane::capture_commit;
  History history = History::committed;
  /** Rows committed in one generation before the history starts anew; 0 never.
   */
  int history_reset_rows = 16384;
  bool context_copy = true;
  bool block_verify = false;
  /** See sampling::Ties; of the draft reader alone. */
  bool relaxed_draft_ties = false;
  bool final_commit = true;
  /** Autoregression waits for a forward's row, not for its whole state. */
  bool async = false;
  /** Rows are shaped on the device and only candidates travel to the host;
   *  unset: where the default device is an accelerator. */
  std::optional<bool> device_candidates;
  RepetitionOptions repetition;
  PrefillOptions prefill;

  /** Log-probabilities with this many alternatives per token; -1 is none. */
  int logprobs = -1;
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

} // namespace qwenmtp::decode
