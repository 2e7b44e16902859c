/** Reading equally spaced items of one file with few calls: neighbours that
 *  are at most a page apart share one pread. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/file.h"
#include "ple/table.h"

namespace qwenmtp::ple {

struct RunLayout {
  uint64_t offset; // of the item of `first_row`
  int64_t first_row;
  size_t item_bytes;
  size_t out_stride; // between items in the output
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
