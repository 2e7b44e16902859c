/** What this process did when, as a Chrome JSON trace that Perfetto opens. Off
 *  until opened; a span then costs one relaxed load. */
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace qwenmtp::trace {

inline std::atomic<bool> on{false};

/** Starts a file, unless one is open: it then counts one more user. Throws
 *  IoError. */
void open(const std::string& path);

/** Completes the file when its last user closes it. */
void close();

/** The time between construction and destruction, on this thread. */
class Span {
 public:
  /** name must live on; n is shown beside it, unless negative. */
  explicit Span(const char* name, int64_t n = -1)
      : name_(on.load(std::memory_order_relaxed) ? name : nullptr), n_(n) {
    if (name_) {
      start_us_ = now_us();
    }
  }
  ~Span() {
    if (name_) {
      write();
    }
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  static double now_us();
  void write() const;

  const char* name_;
  int64_t n_;
  double start_us_ = 0;
};

} // namespace qwenmtp::trace
