#include "ple/hot_rows.h"

#include <cstring>
#include <new>

namespace qwenmtp::ple {

HotRows::HotRows(uint64_t budget_bytes, size_t record_bytes)
    : record_bytes_(record_bytes),
      n_sets_(budget_bytes / (sizeof(Set) + kWays * record_bytes)) {
  if (n_sets_ > 0) {
    slab_.reset(std::calloc(1, bytes()));
    if (slab_ == nullptr) {
      throw std::bad_alloc();
    }
    sets_ = static_cast<Set*>(slab_.get());
    records_ = reinterpret_cast<std::byte*>(sets_ + n_sets_);
  }
}

uint64_t HotRows::bytes() const {
  return n_sets_ * (sizeof(Set) + kWays * record_bytes_);
}

void HotRows::clear() {
  for (uint64_t i = 0; i < n_sets_; ++i) {
    sets_[i] = Set{};
  }
}

HotRows::Set& HotRows::set_of(int64_t row) {
  // The high half of a product with the golden ratio scatters neighbours.
  const uint64_t hash = static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15;
  return sets_[(hash >> 32) * n_sets_ >> 32];
}

std::byte* HotRows::record_at(const Set& set, size_t way) {
  const auto slot = static_cast<size_t>(&set - sets_) * kWays + way;
  return records_ + slot * record_bytes_;
}

const std::byte* HotRows::find(int64_t row) {
  if (n_sets_ == 0) {
    return nullptr;
  }
  Set& set = set_of(row);
  for (size_t way = 0; way < kWays; ++way) {
    if (set.tags[way] == row + 1) {
      set.used[way] = 1;
      return record_at(set, way);
    }
  }
  return nullptr;
}

void HotRows::insert(int64_t row, const std::byte* record) {
  if (n_sets_ == 0 || find(row) != nullptr) {
    return;
  }
  Set& set = set_of(row);
  while (set.used[set.hand] != 0) {
    set.used[set.hand] = 0;
    set.hand = (set.hand + 1) % kWays;
  }
  set.tags[set.hand] = row + 1;
  std::memcpy(record_at(set, set.hand), record, record_bytes_);
  set.hand = (set.hand + 1) % kWays;
}

} // namespace qwenmtp::ple
