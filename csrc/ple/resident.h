/** A table read into memory as a whole. */
#pragma once

#include <cstdint>
#include <functional>

#include "base/error.h"
#include "ple/table.h"

namespace qwenmtp::ple {

/** The table is larger than its budget; the message has the numbers. */
struct InsufficientMemory : Error {
  explicit InsufficientMemory(const std::string& message)
      : Error("insufficient_memory", message) {
  }
};

/** Reads every row with `n_threads` besides the caller. `progress(done, total)`
 *  in bytes, on the calling thread, from 0 to total; what it throws ends the
 *  load. Throws InsufficientMemory with the numbers, before anything is read,
 *  if the table has more than `budget_bytes`; PleReadError. */
Table make_resident(
    const Table& source,
    uint64_t budget_bytes,
    int n_threads,
    const std::function<void(uint64_t done, uint64_t total)>& progress);

} // namespace qwenmtp::ple
