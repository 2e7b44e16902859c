#include "ple/unique_rows.h"

#include <algorithm>
#include <array>
#include <utility>

namespace qwenmtp::ple {
namespace {

constexpr int kSlotBits = 16;
constexpr int kDigitBits = 11;
constexpr size_t kDigits = size_t{1} << kDigitBits;
constexpr size_t kSmall = 256;

// Stable, by the bits above the slot, least digit first: slots are in order
// already, so only the row's digits cost a pass.
void sort_keys(std::vector<uint64_t>& keys) {
  if (keys.size() <= kSmall) {
    std::sort(keys.begin(), keys.end());
    return;
  }
  const uint64_t highest = *std::max_element(keys.begin(), keys.end());
  std::vector<uint64_t> sorted(keys.size());
  for (int shift = kSlotBits; shift < 64 && highest >> shift != 0;
       shift += kDigitBits) {
    std::array<uint32_t, kDigits> next{};
    for (const uint64_t key : keys) {
      ++next[key >> shift & (kDigits - 1)];
    }
    uint32_t total = 0;
    for (uint32_t& count : next) {
      total += std::exchange(count, total);
    }
    for (const uint64_t key : keys) {
      sorted[next[key >> shift & (kDigits - 1)]++] = key;
    }
    keys.swap(sorted);
  }
}

} // namespace

UniqueRows unique_rows(std::span<const int64_t> lookup) {
  std::vector<uint64_t> keys(lookup.size());
  for (size_t slot = 0; slot < lookup.size(); ++slot) {
    keys[slot] = static_cast<uint64_t>(lookup[slot]) << kSlotBits | slot;
  }
  sort_keys(keys);
  UniqueRows unique;
  unique.rows.reserve(lookup.size());
  unique.first.reserve(lookup.size() + 1);
  unique.slots.reserve(lookup.size());
  for (const uint64_t key : keys) {
    const auto row = static_cast<int64_t>(key >> kSlotBits);
    if (unique.rows.empty() || unique.rows.back() != row) {
      unique.rows.push_back(row);
      unique.first.push_back(static_cast<uint32_t>(unique.slots.size()));
    }
    unique.slots.push_back(static_cast<uint16_t>(key));
  }
  unique.first.push_back(static_cast<uint32_t>(unique.slots.size()));
  return unique;
}

} // namespace qwenmtp::ple
