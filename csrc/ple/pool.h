/** A few threads that run jobs slice by slice. Knows nothing about rows. */
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace qwenmtp::ple {

/** slice(0) .. slice(n - 1), each once, in any order and on any thread. The
 *  first exception ends the job: slices not begun by then are skipped. */
class Job {
 public:
  Job(size_t n_slices, std::function<void(size_t)> slice);

  size_t n_slices() const {
    return n_slices_;
  }

  /** Run one slice; false if all have been taken. */
  bool run_one();

  /** Take slices on this thread until none is left, then wait for those that
   *  others still run. True if every slice ran without an exception. */
  bool finish();

  /** Skip the slices that have not begun. */
  void cancel() {
    skip_ = true;
  }

  /** No slice runs or will run. */
  bool done() const {
    return left_ == 0;
  }

  /** What the first failing slice threw; only after finish() gave false. */
  std::exception_ptr error() const {
    return error_;
  }

 private:
  const size_t n_slices_;
  const std::function<void(size_t)> slice_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> left_;
  std::atomic<bool> skip_{false};
  std::mutex mutex_;
  std::condition_variable done_;
  std::exception_ptr error_;
};

class Pool {
 public:
  /** 0..kMaxThreads, else throws InvalidArgument. */
  explicit Pool(int n_threads);
  /** Waits for running slices; queued ones are never run. */
  ~Pool();

  size_t n_threads() const {
    return threads_.size();
  }

  /** Queue behind the others, or before them when urgent. False, and nothing
   *  queued, if kMaxJobs wait already. */
  bool submit(std::shared_ptr<Job> job, bool urgent);

  static constexpr int kMaxThreads = 32;
  static constexpr size_t kMaxJobs = 64;

 private:
  void run();
  void stop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

} // namespace qwenmtp::ple
