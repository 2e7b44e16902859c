/** Records of recently used rows in one slab of fixed size: sets of eight
 * slots, CLOCK within a set. One thread at a time. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace qwenmtp::ple {

class HotRows {
 public:
  /** Takes at most `budget_bytes` in all, tags and records; 0 holds nothing. */
  HotRows(uint64_t budget_bytes, size_t record_bytes);

  /** Hints that find(row) comes soon. */
  void prefetch(int64_t row) {
    if (n_sets_ > 0) {
      __builtin_prefetch(&set_of(row));
    }
  }

  /** The record of `row`, or null. Valid until the next insert or clear. */
  const std::byte* find(int64_t row);

  /** Keeps a copy. A row that was found since the hand passed it survives. */
  void insert(int64_t row, const std::byte* record);

  void clear();

  /** Bytes of the slab; physical memory follows as slots fill. */
  uint64_t bytes() const;

  /** A budget that a table of n_rows never needs to exceed: two slots a row, so
   *  that sets rarely overflow. */
  static uint64_t most_bytes(uint64_t n_rows, size_t record_bytes) {
    return 2 * n_rows * (sizeof(Set) / kWays + record_bytes);
  }

  /** Rows that the slab can hold. */
  uint64_t capacity() const {
    return n_sets_ * kWays;
  }

 private:
  static constexpr size_t kWays = 8;

  struct Set {
    int64_t tags[kWays]; // row + 1; 0 is empty
    uint8_t used[kWays];
    uint8_t hand;
  };
  struct Free {
    void operator()(void* p) const {
      std::free(p);
    }
  };

  Set& set_of(int64_t row);
  std::byte* record_at(const Set& set, size_t way);

  size_t record_bytes_;
  uint64_t n_sets_;
  std::unique_ptr<void, Free> slab_; // sets, then records, zeroed lazily
  Set* sets_ = nullptr;
  std::byte* records_ = nullptr;
};

} // namespace qwenmtp::ple
