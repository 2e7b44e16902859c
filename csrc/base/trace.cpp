#include "base/trace.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace qwenmtp::trace {

namespace {

struct Closer {
  void operator()(std::FILE* file) const {
    std::fputs("\n]\n", file);
    std::fclose(file);
  }
};

std::mutex mutex;
std::unique_ptr<std::FILE, Closer> file; // under mutex, like n_users
int n_users = 0;

/** Small numbers in the order of first use. */
int thread_number() {
  static std::atomic<int> next{1};
  thread_local const int number = next++;
  return number;
}

} // namespace

void open(const std::string& path) {
  const std::lock_guard lock(mutex);
  if (!file) {
    file.reset(std::fopen(path.c_str(), "we"));
    if (!file) {
      throw IoError(
          "[trace.open] " + path + ": " + std::strerror(errno),
          errno);
    }
    std::fputs(
        "[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\","
        "\"args\":{\"name\":\"qwenmtp\"}}",
        file.get());
  }
  n_users++;
  on = true;
}

void close() {
  const std::lock_guard lock(mutex);
  if (n_users > 0 && --n_users == 0) {
    on = false;
    file.reset();
  }
}

double Span::now_us() {
  using Clock = std::chrono::steady_clock;
  static const auto start = Clock::now();
  return std::chrono::duration<double, std::micro>(Clock::now() - start)
      .count();
}

void Span::write() const {
  const double end_us = now_us();
  const int thread = thread_number();
  const std::lock_guard lock(mutex);
  if (!file) { // closed since the span began
    return;
  }
  std::fprintf(
      file.get(),
      ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,"
      "\"dur\":%.3f",
      thread,
      name_,
      start_us_,
      end_us - start_us_);
  if (n_ >= 0) {
    std::fprintf(
        file.get(),
        ",\"args\":{\"n\":%lld}",
        static_cast<long long>(n_));
  }
  std::fputc('}', file.get());
}

} // namespace qwenmtp::trace
