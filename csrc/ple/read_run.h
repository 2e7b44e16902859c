/** Reading equally spaced items of one file with few calls: neighbours that
 *  are at most a page apart share one pread. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "base/file.h"
#include "ple/table.h"

namespace qwenmtp::ple {

/** Items lie back to back in blocks; planar arrays are one block. */
struct RunLayout {
  uint64_t offset; // of the item of `first_row`
  int64_t first_row;
  size_t item_bytes;
  size_t out_stride; // between items in the output
  int64_t items_per_block = std::numeric_limits<int64_t>::max();
  uint64_t block_bytes = 0;

  uint64_t offset_of(int64_t row) const {
    const int64_t i = row - first_row;
    return offset + static_cast<uint64_t>(i / items_per_block) * block_bytes +
           static_cast<uint64_t>(i % items_per_block) * item_bytes;
  }
};

/** Items of `rows` (ascending) to out, out + out_stride, ... Throws
 *  PleReadError. */
void read_runs(
    const File& file,
    const RunLayout& layout,
    std::span<const int64_t> rows,
    std::byte* out,
    ReadCost& cost);

/** File::pread_exact that throws PleReadError. */
void read_bytes(
    const File& file,
    uint64_t offset,
    std::span<std::byte> out,
    ReadCost&);

} // namespace qwenmtp::ple
