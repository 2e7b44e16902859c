#include "ple/ngram.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"

namespace qwenmtp::ple {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;
constexpr int64_t kMaxVocab = int64_t{1} << 31;
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

// One output of SplitMix64 (Steele et al. 2014).
uint64_t mix(uint64_t x) {
  x += kGamma;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

bool is_prime(int64_t n) {
  if (n < 4) {
    return n > 1;
  }
  if (n % 2 == 0) {
    return false;
  }
  for (int64_t d = 3; d <= n / d; d += 2) {
    if (n % d == 0) {
      return false;
    }
  }
  return true;
}

void check_id(const NgramConfig& config, int64_t id) {
  if (id < 0 || id >= config.vocab) {
    throw InvalidArgument(
        "[ple.ngram_rows] token id " + std::to_string(id) + ", expected 0.." +
        std::to_string(config.vocab - 1));
  }
}

} // namespace

void check(const NgramConfig& config, int64_t table_rows) {
  const auto fail = [](const std::string& what) {
    throw ModelFormatError("[ple.check] " + what);
  };
  if (config.ngram_size < 2 || config.heads_per_ngram < 1 || config.vocab < 1 ||
      config.vocab > kMaxVocab) {
    fail(
        "ngram_size " + std::to_string(config.ngram_size) + ", heads " +
        std::to_string(config.heads_per_ngram) + ", vocab " +
        std::to_string(config.vocab) + ", expected >= 2, >= 1, 1..2^31");
  }
  const auto heads = static_cast<size_t>(config.heads());
  if (config.multipliers.size() != static_cast<size_t>(config.ngram_size) ||
      config.sizes.size() != heads || config.offsets.size() != heads) {
    fail(
        std::to_string(config.multipliers.size()) + " multipliers, " +
        std::to_string(config.sizes.size()) + " sizes, " +
        std::to_string(config.offsets.size()) + " offsets, expected " +
        std::to_string(config.ngram_size) + " and " + std::to_string(heads));
  }
  for (const int64_t multiplier : config.multipliers) {
    if (multiplier < 0 || multiplier > kMaxInt64 / config.vocab) {
      fail(
          "multiplier " + std::to_string(multiplier) +
          ", expected products with ids below 2^63");
    }
  }
  int64_t next = 0;
  for (size_t h = 0; h < heads; ++h) {
    if (config.sizes[h] < 1 || config.offsets[h] != next ||
        config.sizes[h] > table_rows - next) {
      fail(
          "head " + std::to_string(h) + " has " +
          std::to_string(config.sizes[h]) + " rows at " +
          std::to_string(config.offsets[h]) + ", expected them at " +
          std::to_string(next) + " of " + std::to_string(table_rows));
    }
    next += config.sizes[h];
  }
  if (config.eos < 0 || config.eos >= config.vocab) {
    fail("eos " + std::to_string(config.eos) + " outside the vocabulary");
  }
}

void ngram_rows(
    const NgramConfig& config,
    std::span<const int32_t> ids,
    std::span<const int64_t> history,
    int64_t* rows) {
  const auto history_len = static_cast<size_t>(config.history_len());
  if (history.size() != history_len) {
    throw InvalidArgument(
        "[ple.ngram_rows] history of " + std::to_string(history.size()) +
        " ids, expected " + std::to_string(history_len));
  }
  // seen[s] = token(t, s): s ids back, eos from the segment's start on down.
  std::vector<uint64_t> seen(history_len + 1);
  const auto eos = static_cast<uint64_t>(config.eos);
  const auto push = [&](int64_t id) {
    check_id(config, id);
    const bool new_segment = seen[0] == eos;
    for (size_t s = history_len; s > 0; --s) {
      seen[s] = new_segment ? eos : seen[s - 1];
    }
    seen[0] = static_cast<uint64_t>(id);
  };
  std::fill(seen.begin(), seen.end(), eos);
  for (const int64_t id : history) {
    push(id);
  }
  for (const int32_t id : ids) {
    push(id);
    uint64_t hash = seen[0] * static_cast<uint64_t>(config.multipliers[0]);
    size_t h = 0;
    for (size_t s = 1; s <= history_len; ++s) {
      hash ^= seen[s] * static_cast<uint64_t>(config.multipliers[s]);
      for (int i = 0; i < config.heads_per_ngram; ++i, ++h) {
        const auto size = static_cast<uint64_t>(config.sizes[h]);
        *rows++ = config.offsets[h] + static_cast<int64_t>(hash % size);
      }
    }
  }
}

std::vector<int64_t> ngram_multipliers(
    uint64_t seed,
    int64_t vocab,
    int ngram_size,
    int ple_index) {
  if (vocab < 1 || vocab > kMaxVocab || ngram_size < 2 || ple_index < 0) {
    throw InvalidArgument(
        "[ple.ngram_multipliers] vocab " + std::to_string(vocab) +
        ", ngram_size " + std::to_string(ngram_size) + ", ple_index " +
        std::to_string(ple_index) + ", expected 1..2^31, >= 2, >= 0");
  }
  // Bounded so that id * multiplier stays below 2^63.
  const auto half = static_cast<uint64_t>(kMaxInt64 / vocab / 2);
  const uint64_t start = seed + 10007 * static_cast<uint64_t>(ple_index);
  std::vector<int64_t> multipliers;
  for (int i = 1; i <= ngram_size; ++i) {
    const uint64_t draw = mix(start + kGamma * static_cast<uint64_t>(i));
    multipliers.push_back(static_cast<int64_t>(2 * (draw % half) + 1));
  }
  return multipliers;
}

HeadLayout ngram_heads(int64_t base, int n_heads, int ple_index) {
  if (base < 1 || n_heads < 1 || ple_index < 0) {
    throw InvalidArgument(
        "[ple.ngram_heads] base " + std::to_string(base) + ", heads " +
        std::to_string(n_heads) + ", ple_index " + std::to_string(ple_index) +
        ", expected >= 1, >= 1, >= 0");
  }
  HeadLayout layout;
  int64_t prime = base;
  int64_t next = 0;
  for (int h = 0; h < (ple_index + 1) * n_heads; ++h, ++prime) {
    while (!is_prime(prime)) {
      ++prime;
    }
    if (h >= ple_index * n_heads) {
      layout.sizes.push_back(prime);
      layout.offsets.push_back(next);
      next += prime;
    }
  }
  return layout;
}

} // namespace qwenmtp::ple
