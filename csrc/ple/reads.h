/** Rows on their way from a table into memory, and from there into a lookup's
 *  values. Reads with whatever threads run its job. */
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ple/pool.h"
#include "ple/table.h"
#include "ple/unique_rows.h"

namespace qwenmtp::ple {

/** The values of a lookup; each of its rows is decoded once. */
struct Sink {
  const RowFormat& format;
  const UniqueRows& unique;
  RowType type;
  std::byte* out; // [slots, dim]

  /** Row number i of the lookup has this record. */
  void put(size_t i, const std::byte* record) const;
};

struct Reads {
  /** Gets the index and the record of a row that has come. */
  using Then = std::function<void(size_t i, const std::byte* record)>;

  /** Of `rows`, ascending; n_threads will share the work with the caller. */
  Reads(
      const Table& table,
      size_t n_threads,
      std::vector<int64_t> rows,
      Then then = nullptr);

  std::byte* record(size_t i) const {
    return records.get() + i * record_bytes;
  }

  const std::vector<int64_t> rows;
  const Then then;
  const size_t record_bytes;
  const size_t slice_rows;
  const std::unique_ptr<std::byte[]> records; // [rows], valid once job is done
  std::atomic<uint64_t> read_calls{0};
  std::atomic<uint64_t> read_bytes{0};
  size_t n_used = 0;
  int age = 0;
  Job job;

 private:
  void read_slice(const Table& table, size_t slice);
};

/** Rows that a lookup reads itself. They go into its sink as they come, so none
 *  is under way any more once this ends. */
class Direct {
 public:
  /** Starts reading row number which[k] of the lookup for every k; the records
   *  will be in `records` under these numbers. */
  Direct(
      const Table& table,
      Pool& pool,
      const Sink& sink,
      std::vector<size_t> which,
      std::vector<const std::byte*>& records);
  ~Direct();
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;

  size_t size() const {
    return which_.size();
  }
  Reads& reads() {
    return *reads_;
  }

 private:
  const std::vector<size_t> which_;
  std::shared_ptr<Reads> reads_;
};

} // namespace qwenmtp::ple
