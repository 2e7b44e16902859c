/** Counters of a stager, and their sums and differences. */
#pragma once

#include <cstdint>

namespace qwenmtp::ple {

/** Calls of embed of one kind: windows of decode, chunks of prefill. */
struct SpanStats {
  uint64_t calls = 0;
  uint64_t tokens = 0;
  uint64_t stage_ns = 0; // in embed
  uint64_t stall_ns = 0; // of these, waiting for rows
};

/** Totals since the stager was made. requested = rows of all slots; distinct =
 *  hot + ahead + cold (per block of 4,096 tokens), none of them when resident.
 *  Reads count where their rows are used or dropped. Counters only: the sums
 *  below treat the struct as words. */
struct StagerStats {
  uint64_t rows_requested = 0;
  uint64_t rows_distinct = 0;
  uint64_t rows_hot = 0;   // in the slab of hot rows
  uint64_t rows_ahead = 0; // read by an earlier request()
  uint64_t rows_cold = 0;  // read by embed itself
  uint64_t read_calls = 0;
  uint64_t read_bytes = 0;
  uint64_t requests = 0;
  uint64_t requests_refused = 0; // too much was waiting already
  uint64_t rows_dropped = 0;     // read ahead and never used
  uint64_t failures = 0;         // embeds that threw PleReadError
  SpanStats windows;             // at most kWindowTokens tokens
  SpanStats chunks;

  StagerStats& operator+=(const StagerStats& other);
  StagerStats operator-(const StagerStats& other) const;
};

} // namespace qwenmtp::ple
