/** The distinct rows of a lookup in reading order, and where each one goes. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace qwenmtp::ple {

struct UniqueRows {
  std::vector<int64_t> rows;   // ascending
  std::vector<uint16_t> slots; // [lookup.size()], row by row, ascending in each
  std::vector<uint32_t> first; // [rows.size() + 1], of a row's slots

  /** Where row number i is wanted; at least one place. */
  std::span<const uint16_t> slots_of(size_t i) const {
    return std::span(slots).subspan(first[i], first[i + 1] - first[i]);
  }
};

/** At most kMaxLookup rows, each below 2^47. */
UniqueRows unique_rows(std::span<const int64_t> lookup);

constexpr size_t kMaxLookup = size_t{1} << 16;

} // namespace qwenmtp::ple
