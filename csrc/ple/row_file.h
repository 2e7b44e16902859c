/** The interleaved form of a table: one record a row, in blocks of whole pages,
 *  so that one read of one page brings a row. Derived from a planar table,
 * which stays the truth.
 *
 *  Little-endian; H = 4096 header bytes, then blocks of `block_bytes`:
 *    0   u8[8]  magic "QWMROWS1"
 *    8   u32    coding: 0 bf16, 1 affine, 2 fp8, 3 float32
 *    12  u32    dim
 *    16  u32    bits            affine, else 0
 *    20  u32    group_size      affine, else 0
 *    24  u32    fp8_scale       bits of the float; that of 1.0 unless fp8
 *    28  u32    record_bytes
 *    32  u32    records_per_block
 *    36  u32    block_bytes     the least multiple of 4096 that fits a record
 *    40  u64    rows
 *    48  u64    file_bytes
 *    56         zeros
 *    4092 u32   CRC-32 of bytes 0..4091
 *  Block b holds records b * records_per_block on, zeros behind the last, and
 * in its last four bytes the CRC-32 (zlib) of b as u64 and all bytes before. */
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/publish.h"
#include "ple/table.h"

namespace qwenmtp::ple {

/** Where rows lie in a row file of this format. */
struct BlockLayout {
  BlockLayout(const RowFormat& format, int64_t rows);

  int64_t n_blocks() const {
    return (rows + records_per_block - 1) / records_per_block;
  }
  uint64_t block_offset(int64_t block) const;
  uint64_t file_bytes() const {
    return block_offset(n_blocks());
  }

  int64_t rows;
  size_t record_bytes;
  size_t block_bytes;
  int64_t records_per_block;
};

/** The rows of `source` from the row file at `path`. Header, size and a sample
 *  of rows are compared with the source; with `checksums`, a block is verified
 *  when it is first touched. Throws ModelFormatError for a file of another
 *  table or format, IoError if it cannot be read. */
Table open_row_file(
    const std::string& path,
    const Table& source,
    bool checksums);

/** Writes a row file that appears whole or not at all. */
class RowFileWriter {
 public:
  /** Takes the disk space. `source` is borrowed. Throws IoError. */
  RowFileWriter(const Table& source, const std::string& path);
  ~RowFileWriter();

  int64_t rows_done() const {
    return rows_done_;
  }

  /** Copies about n_rows rows (whole blocks) more. Throws PleReadError. */
  void step(int64_t n_rows);

  /** Only after the last row: header, sync, rename. */
  void commit();

 private:
  const Table& source_;
  BlockLayout layout_;
  int dir_fd_;
  std::unique_ptr<base::Publication> file_;
  int64_t rows_done_ = 0;
  std::vector<std::byte> blocks_;
  std::vector<std::byte> records_;
};

/** The first of rows [first, first + n) in which the tables differ, or -1. Both
 *  are read in full, so checksums that are on are checked. */
int64_t first_difference(
    const Table& a,
    const Table& b,
    int64_t first,
    int64_t n);

} // namespace qwenmtp::ple
