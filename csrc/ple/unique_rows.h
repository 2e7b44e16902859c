/** The distinct rows of a lookup in reading order, and where each one goes. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace qwenmtp::ple {

struct UniqueRows {
  std::vector<int64_t> rows;     // ascending
  std::vector<uint32_t> of_slot; // [lookup.size()], index into rows
};

/** At most kMaxLookup rows, each below 2^47. */
UniqueRows unique_rows(std::span<const int64_t> lookup);

constexpr size_t kMaxLookup = size_t{1} << 16;

} // namespace qwenmtp::ple
