/** Which thread runs which part of a job. One thread begins a job once every
 *  part of the one before is done; any thread takes parts and reports them. */
#pragma once

#include <atomic>
#include <cstdint>

namespace qwenmtp::kernels {

class Tickets {
 public:
  /** Opens a job of `parts` parts and returns its number. `between` runs in the
   *  only place where old and new meet; tests take a ticket there. */
  template <typename Between>
  uint32_t begin(int parts, Between between) {
    const uint32_t job = ++job_;
    left_.store(parts, std::memory_order_relaxed);
    // A late taker of the job before must find its ticket gone once it can see
    // the new number of parts, so the ticket goes first.
    next_.store(uint64_t{job} << 32, std::memory_order_relaxed);
    between();
    parts_.store(parts, std::memory_order_release);
    return job;
  }
  uint32_t begin(int parts) {
    return begin(parts, [] {});
  }

  /** A part of `job` that nobody has taken, or -1. */
  int take(uint32_t job) {
    uint64_t next = next_.load(std::memory_order_acquire);
    while (next >> 32 == job) {
      const int i = static_cast<int>(next & 0xffffffffu);
      if (i >= parts_.load(std::memory_order_acquire)) {
        break;
      }
      if (next_.compare_exchange_weak(
              next,
              next + 1,
              std::memory_order_acq_rel,
              std::memory_order_acquire)) {
        return i;
      }
    }
    return -1;
  }

  void done() {
    left_.fetch_sub(1, std::memory_order_acq_rel);
  }

  bool all_done() const {
    return left_.load(std::memory_order_acquire) == 0;
  }

 private:
  uint32_t job_ = 0;              // of the thread that begins
  std::atomic<uint64_t> next_{0}; // job, then its next part
  std::atomic<int> parts_{0};
  std::atomic<int> left_{0};
};

} // namespace qwenmtp::kernels
