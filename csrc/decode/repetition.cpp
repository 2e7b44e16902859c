#include "decode/repetition.h"

#include <algorithm>

namespace qwenmtp::decode {

namespace {

/** Equal tokens that prove a proposed period, and the width of the hash. */
constexpr size_t kProof = 32;
constexpr uint64_t kHashBase = 0x9E3779B97F4A7C15u;
constexpr size_t kHoldbackMargin = 64;

uint64_t power(uint64_t base, size_t exponent) {
  uint64_t out = 1;
  for (size_t i = 0; i < exponent; i++) {
    out *= base;
  }
  return out;
}

/** How many tokens before `end`, going back, equal the one a period earlier;
 *  counts no further than limit. */
size_t run_length(
    const std::vector<int32_t>& tokens,
    size_t period,
    size_t end,
    size_t limit) {
  size_t run = 0;
  while (run < limit && run + period < end &&
         tokens[end - 1 - run] == tokens[end - 1 - run - period]) {
    run++;
  }
  return run;
}

} // namespace

Repetition::Repetition(const RepetitionOptions& options) : options_(options) {
  if (options_.armed && options_.holdback != Holdback::off) {
    window_ = kHoldbackMargin +
              std::max(
                  options_.min_repeats * options_.max_block_tokens,
                  options_.min_repeated_tokens + options_.max_block_tokens);
  }
}

std::optional<RepetitionHit> Repetition::check(
    const std::vector<int32_t>& tokens) {
  if (!options_.armed) {
    return std::nullopt;
  }
  if (auto hit = short_block(tokens)) {
    return hit;
  }
  return long_cycle(tokens);
}

std::optional<RepetitionHit> Repetition::short_block(
    const std::vector<int32_t>& tokens) const {
  const size_t n = tokens.size();
  if (n < static_cast<size_t>(options_.min_tokens)) {
    return std::nullopt;
  }
  std::optional<RepetitionHit> best;
  const size_t longest =
      std::min<size_t>(options_.max_block_tokens, n / options_.min_repeats);
  for (size_t b = options_.min_block_tokens; b <= longest; b++) {
    const int repeats = static_cast<int>(run_length(tokens, b, n, n) / b + 1);
    const int covered = repeats * static_cast<int>(b);
    if (repeats >= options_.min_repeats &&
        covered >= options_.min_repeated_tokens &&
        (!best || covered > best->trimmed_tokens)) {
      best = {
          "exact_repeated_token_suffix",
          static_cast<int>(b),
          repeats,
          covered};
    }
  }
  return best;
}

std::optional<RepetitionHit> Repetition::long_cycle(
    const std::vector<int32_t>& tokens) {
  static const uint64_t drop = power(kHashBase, kProof);
  const size_t shortest = options_.max_block_tokens + 1;
  const size_t longest = options_.max_cycle_tokens;
  const auto needed = [&](size_t period) {
    const size_t span = options_.min_cycle_span_tokens;
    return std::max(
        (options_.min_cycle_copies - 1) * period,
        span > period ? span - period : 0);
  };
  for (; seen_ < tokens.size(); seen_++) {
    const size_t t = seen_;
    std::erase_if(runs_, [&](const auto& run) {
      return tokens[t] != tokens[t - run.first];
    });
    for (auto& run : runs_) {
      run.second++;
    }
    hash_ = hash_ * kHashBase + static_cast<uint32_t>(tokens[t]) + 1;
    if (t >= kProof) {
      hash_ -= drop * (static_cast<uint32_t>(tokens[t - kProof]) + 1);
    }
    if (t + 1 >= kProof) {
      const auto [it, fresh] = last_.try_emplace(hash_, t);
      const size_t period = t - it->second;
      it->second = t;
      const bool known =
          std::any_of(runs_.begin(), runs_.end(), [&](const auto& run) {
            return run.first == period;
          });
      if (!fresh && !known && period >= shortest && period <= longest) {
        const size_t run = run_length(tokens, period, t + 1, needed(period));
        if (run >= kProof) {
          runs_.emplace_back(period, run);
        }
      }
    }
    if (t + 1 < static_cast<size_t>(options_.min_tokens)) {
      continue;
    }
    for (const auto& [period, run] : runs_) {
      if (run >= needed(period)) {
        seen_++;
        return RepetitionHit{
            "long_cycle",
            static_cast<int>(period),
            static_cast<int>((run + period) / period),
            0};
      }
    }
  }
  return std::nullopt;
}

bool Repetition::loop_forms(const std::vector<int32_t>& tokens) const {
  const size_t n = tokens.size();
  const size_t floor = std::max(2, options_.min_repeated_tokens / 2);
  if (n < floor) {
    return false;
  }
  const size_t longest = std::min<size_t>(options_.max_block_tokens, n / 2);
  for (size_t b = options_.min_block_tokens; b <= longest; b++) {
    const size_t repeats = run_length(tokens, b, n, floor + b) / b + 1;
    if (repeats >= 2 && repeats * b >= floor) {
      return true;
    }
  }
  return false;
}

size_t Repetition::releasable(const std::vector<int32_t>& tokens) const {
  const size_t n = tokens.size();
  const bool engaged = window_ > 0 && (options_.holdback == Holdback::strict ||
                                       loop_forms(tokens));
  if (!engaged) {
    return n;
  }
  const size_t start = options_.min_tokens;
  const size_t safe = start > window_ ? start - window_ : 0;
  return std::max(n > window_ ? n - window_ : 0, std::min(n, safe));
}

} // namespace qwenmtp::decode
