#include "decode/context_copy.h"

#include <algorithm>

namespace qwenmtp::decode {

namespace {

constexpr size_t kGram = 6;
constexpr size_t kMaxExtension = 4;
constexpr size_t kLadder[kMaxExtension + 1] = {8, 12, 16, 24, 32};
constexpr size_t kCap = 24;
constexpr size_t kUnprovenCap = 8;
constexpr int kHits = 32;

constexpr double kStartAverage = 0.5;
constexpr double kProven = 0.5;
constexpr double kPoor = 0.35;
constexpr int kFirstBackoff = 64;
constexpr int kLastBackoff = 4096;

/** Token i of prompt and completion joined. */
struct Joined {
  std::span<const int32_t> prompt;
  std::span<const int32_t> tokens;

  size_t size() const {
    return prompt.size() + tokens.size();
  }
  int32_t operator[](size_t i) const {
    return i < prompt.size() ? prompt[i] : tokens[i - prompt.size()];
  }
};

/** Hash of the gram that ends before `end`. */
template <typename Ids>
uint64_t gram_hash(const Ids& ids, size_t end) {
  uint64_t h = 0;
  for (size_t i = end - kGram; i < end; i++) {
    h = (h ^ static_cast<uint32_t>(ids[i])) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
  }
  return h;
}

} // namespace

ContextCopy::ContextCopy(std::span<const int32_t> prompt)
    : prompt_(prompt.begin(), prompt.end()),
      older_(prompt.size() + 1, 0),
      average_(kStartAverage),
      backoff_(kFirstBackoff) {
  for (size_t end = kGram; end <= prompt_.size(); end++) {
    uint32_t& newest = newest_[gram_hash(prompt_, end)];
    older_[end] = newest;
    newest = static_cast<uint32_t>(end);
  }
}

bool ContextCopy::find(std::span<const int32_t> tokens, Match& best) const {
  const Joined joined{prompt_, tokens};
  const size_t n = joined.size();
  if (n < kGram + 1) {
    return false;
  }
  const auto chain = newest_.find(gram_hash(joined, n));
  if (chain == newest_.end()) {
    return false;
  }
  bool found = false;
  int hits = 0;
  for (size_t end = chain->second; end != 0 && hits < kHits;
       end = older_[end]) {
    bool equal = true;
    for (size_t i = 1; i <= kGram && equal; i++) {
      equal = prompt_[end - i] == joined[n - i];
    }
    if (!equal) {
      continue;
    }
    hits++;
    if (end >= prompt_.size()) {
      continue;
    }
    size_t extension = 0;
    while (extension < kMaxExtension && end > kGram + extension &&
           prompt_[end - kGram - 1 - extension] ==
               joined[n - kGram - 1 - extension]) {
      extension++;
    }
    if (!found || extension > best.extension) {
      best = {end, extension};
      found = true;
    }
  }
  return found;
}

std::span<const int32_t> ContextCopy::propose(
    std::span<const int32_t> tokens,
    size_t room,
    CopyStatistics& stats) {
  if (suspended(tokens.size())) {
    return {};
  }
  stats.probes++;
  Match match;
  if (!find(tokens, match)) {
    return {};
  }
  const size_t cap = seen_ >= 2 && average_ >= kProven ? kCap : kUnprovenCap;
  const size_t length = std::min(
      {kLadder[match.extension],
       cap,
       prompt_.size() - match.end,
       std::max<size_t>(1, room)});
  return std::span(prompt_).subspan(match.end, length);
}

void ContextCopy::record(
    size_t accepted,
    size_t drafted,
    size_t emitted,
    CopyStatistics& stats) {
  stats.rounds++;
  stats.drafted_tokens += drafted;
  stats.accepted_tokens += accepted;
  stats.accepted_blocks += accepted > 0;
  const double ratio = static_cast<double>(accepted) / drafted;
  average_ = 0.7 * average_ + 0.3 * ratio;
  seen_++;
  if (ratio >= kProven) {
    backoff_ = kFirstBackoff;
  }
  if (seen_ >= 3 && average_ < kPoor) {
    suspended_until_ = emitted + backoff_;
    backoff_ = std::min(2 * backoff_, kLastBackoff);
    average_ = kStartAverage;
    seen_ = 0;
    stats.suspensions++;
  }
}

} // namespace qwenmtp::decode
