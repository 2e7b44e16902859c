/** What both decode loops work on: the request, the answer so far, the
 *  generator and the readers. */
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "decode/network.h"
#include "decode/options.h"
#include "decode/repetition.h"
#include "decode/row_reader.h"
#include "decode/statistics.h"
#include "sampling/draws.h"

namespace qwenmtp::decode {

enum class Finish { none, stop, length, cancelled, deadline };

enum class StopOrigin {
  unknown,
  primary,
  accepted_draft,
  residual_correction,
  bonus,
  context_copy,
  repetition_stop
};

/** Thrown between two steps when the caller cancelled or the time is up. */
struct Interrupted {
  Finish reason;
};

struct Turn {
  Turn(Network& network, Options options, std::vector<int32_t> prompt);

  /** Throws Interrupted. */
  void poll() const;

  bool is_stop(int32_t token) const {
    return options.stops.contains(token);
  }
  /** Tokens that may still be emitted. */
  int room() const {
    return options.max_tokens - static_cast<int>(tokens.size());
  }
  bool greedy() const {
    return options.target.greedy();
  }

  sampling::Steering steering() const {
    return {options.target.penalised() ? &counts : nullptr, {}};
  }
  /** A token of the target law from an evaluated row. */
  int32_t sample(const HostRows& rows, int row);

  /** Adds a token to the answer. Row `row` produced or verified it: the source
   *  of its log-probability. */
  void append(int32_t token, const HostRows& rows, int row);

  /** Moves what may be released now, without stop tokens, into batch. */
  void release();
  /** The same for everything left. */
  void flush();

  /** Runs the repetition stop; true if it fired (and cut the answer). */
  bool repeats();

  Network& network;
  const Options options;
  const std::vector<int32_t> prompt;

  std::optional<Tip> tip;
  std::vector<int32_t> tokens;
  /** Emitted, not yet forwarded. */
  std::optional<int32_t> pending;
  StopOrigin stop_origin = StopOrigin::unknown;
  bool repeated = false;

  /** Released by the current step, and the log-probabilities of these tokens
   *  where they were asked for. */
  std::vector<int32_t> batch;
  std::vector<sampling::LogProbability> batch_logprobs;

  sampling::Draws draws;
  RowReader target;
  RowReader draft;
  /** Of the answer; kept only for a penalised target. */
  sampling::TokenCounts counts;
  Statistics statistics;
  std::atomic<bool> cancelled = false;

 private:
  void release_until(size_t end);

  Repetition repetition_;
  size_t released_ = 0;
  std::vector<sampling::LogProbability> logprobs_;
};

} // namespace qwenmtp::decode
