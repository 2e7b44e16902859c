/** The rows of an n-gram table as records, wherever they lie: planar arrays in
 *  one or many files, one interleaved row file, or memory. Owns the open files;
 *  no cache, no threads. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ple/row_codec.h"

namespace qwenmtp::ple {

/** Where one planar array begins. */
struct Plane {
  std::string path;
  uint64_t offset = 0;
};

/** Consecutive rows that lie together; planes in the order of a record. */
struct Shard {
  int64_t rows = 0;
  std::vector<Plane> planes;
};

struct TableSpec {
  RowFormat format;
  std::vector<Shard> shards; // in row order
  std::string row_file = ""; // read the rows here; made from the shards
  bool checksums = false;    // of the row file's blocks, on first touch
};

/** Bytes of one file. */
struct Extent {
  std::string path;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/** What reading cost, in calls of pread and bytes that they returned. */
struct ReadCost {
  uint64_t calls = 0;
  uint64_t bytes = 0;

  ReadCost& operator+=(const ReadCost& other) {
    calls += other.calls;
    bytes += other.bytes;
    return *this;
  }
};

/** Rows in some storage. read() is safe to call from several threads. */
class RowSource {
 public:
  virtual ~RowSource() = default;

  /** Records of `rows` (ascending, each in range) to `records`, packed.
   *  Throws PleReadError on I/O errors, short files and failed checksums. */
  virtual void read(
      std::span<const int64_t> rows,
      std::byte* records,
      ReadCost& cost) const = 0;

  /** All records in row order where they lie in memory, else null. */
  virtual const std::byte* resident() const {
    return nullptr;
  }

  /** Where the rows lie on disk; what saves most reads a byte comes first. */
  virtual std::vector<Extent> extents() const {
    return {};
  }
};

class Table {
 public:
  /** Throws ModelFormatError if a file ends before its array does or the row
   *  file was not made from these shards, IoError if a file cannot be opened.
   */
  static Table open(const TableSpec& spec);

  Table(RowFormat format, int64_t rows, std::unique_ptr<RowSource> source)
      : format_(format), rows_(rows), source_(std::move(source)) {
  }

  const RowFormat& format() const {
    return format_;
  }

  int64_t rows() const {
    return rows_;
  }

  /** Bytes of all records; what a resident table occupies. */
  uint64_t bytes() const {
    return static_cast<uint64_t>(rows_) * format_.record_bytes();
  }

  /** See RowSource::read. */
  void read(std::span<const int64_t> rows, std::byte* records, ReadCost& cost)
      const {
    source_->read(rows, records, cost);
  }

  /** See RowSource::resident. */
  const std::byte* resident() const {
    return source_->resident();
  }

  /** See RowSource::extents. */
  std::vector<Extent> extents() const {
    return source_->extents();
  }

  /** Values [rows.size(), dim] of any rows in any order, read one by one: the
   *  plain path that Stager's results equal. Throws InvalidArgument for a row
   *  outside the table. */
  void gather(std::span<const int64_t> rows, RowType type, void* out) const;

 private:
  RowFormat format_;
  int64_t rows_;
  std::unique_ptr<RowSource> source_;
};

} // namespace qwenmtp::ple
