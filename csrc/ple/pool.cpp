#include "ple/pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace qwenmtp::ple {

Job::Job(size_t n_slices, std::function<void(size_t)> slice)
    : n_slices_(n_slices), slice_(std::move(slice)), left_(n_slices) {
}

bool Job::run_one() {
  const size_t i = next_.fetch_add(1);
  if (i >= n_slices_) {
    return false;
  }
  if (!skip_) {
    try {
      slice_(i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (error_ == nullptr) {
        error_ = std::current_exception();
      }
      skip_ = true;
    }
  }
  if (left_.fetch_sub(1) == 1) {
    const std::lock_guard lock(mutex_);
    done_.notify_all();
  }
  return true;
}

bool Job::finish() {
  while (run_one()) {
  }
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return left_ == 0; });
  return !skip_;
}

Pool::Pool(int n_threads) {
  if (n_threads < 0 || n_threads > kMaxThreads) {
    throw InvalidArgument(
        "[ple.Pool] " + std::to_string(n_threads) + " threads, expected 0.." +
        std::to_string(kMaxThreads));
  }
  try {
    for (int i = 0; i < n_threads; ++i) {
      threads_.emplace_back([this] { run(); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

Pool::~Pool() {
  stop();
}

void Pool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

bool Pool::submit(std::shared_ptr<Job> job, bool urgent) {
  const size_t n_wanted = std::min(job->n_slices(), threads_.size());
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMaxJobs) {
      return false;
    }
    if (urgent) {
      queue_.push_front(std::move(job));
    } else {
      queue_.push_back(std::move(job));
    }
  }
  for (size_t i = 0; i < n_wanted; ++i) {
    wake_.notify_one();
  }
  return true;
}

void Pool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) {
      return;
    }
    const std::shared_ptr<Job> job = queue_.front();
    lock.unlock();
    const bool ran = job->run_one();
    lock.lock();
    if (!ran) {
      std::erase(queue_, job);
    }
  }
}

} // namespace qwenmtp::ple
