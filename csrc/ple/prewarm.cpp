#include "ple/prewarm.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/file.h"

namespace qwenmtp::ple {
namespace {

constexpr uint64_t kPiece = 4 << 20;

using Clock = std::chrono::steady_clock;

/** `extents` cut after n_bytes. */
std::vector<Extent> first_bytes(std::vector<Extent> extents, uint64_t n_bytes) {
  for (Extent& extent : extents) {
    extent.bytes = std::min(extent.bytes, n_bytes);
    n_bytes -= extent.bytes;
  }
  return extents;
}

} // namespace

Prewarm::Prewarm(std::vector<Extent> extents, uint64_t n_bytes)
    : extents_(first_bytes(std::move(extents), n_bytes)), begin_(Clock::now()) {
  for (const Extent& extent : extents_) {
    wanted_ += extent.bytes;
  }
  thread_ = std::thread([this] { run(); });
}

Prewarm::~Prewarm() {
  stop_ = true;
  thread_.join();
}

void Prewarm::run() {
  try {
    std::vector<std::byte> piece(kPiece);
    for (const Extent& extent : extents_) {
      const File file(extent.path);
      for (uint64_t done = 0; done < extent.bytes && !stop_;) {
        const uint64_t n = std::min(kPiece, extent.bytes - done);
        file.pread_exact(extent.offset + done, std::span(piece).first(n));
        done += n;
        read_ += n;
      }
    }
  } catch (const std::exception&) {
    // The embed that needs these bytes reads them again and reports.
  }
  ended_after_ns_ = std::chrono::nanoseconds(Clock::now() - begin_).count();
}

PrewarmReceipt Prewarm::receipt() const {
  const int64_t after = ended_after_ns_;
  const int64_t ns =
      after >= 0 ? after
                 : std::chrono::nanoseconds(Clock::now() - begin_).count();
  return {wanted_, read_, 1e-9 * static_cast<double>(ns), after >= 0};
}

} // namespace qwenmtp::ple
