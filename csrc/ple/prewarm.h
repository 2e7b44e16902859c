/** Reads a table's files once, in the background, so that the system's page
 *  cache holds them. Keeps nothing; an error ends it and is nobody's problem.
 */
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "ple/table.h"

namespace qwenmtp::ple {

struct PrewarmReceipt {
  uint64_t wanted_bytes = 0;
  uint64_t read_bytes = 0;
  double seconds = 0;
  bool ended = true;
};

class Prewarm {
 public:
  /** Up to n_bytes of `extents`, in their order. */
  Prewarm(std::vector<Extent> extents, uint64_t n_bytes);
  /** Stops after the read in hand. */
  ~Prewarm();

  PrewarmReceipt receipt() const;

 private:
  void run();

  const std::vector<Extent> extents_;
  uint64_t wanted_ = 0;
  const std::chrono::steady_clock::time_point begin_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> read_{0};
  std::atomic<int64_t> ended_after_ns_{-1};
  std::thread thread_;
};

} // namespace qwenmtp::ple
