#include "ple/read_run.h"

#include <cstring>
#include <vector>

#include "base/error.h"

namespace qwenmtp::ple {
namespace {

constexpr uint64_t kMaxGap = 4096;
constexpr uint64_t kMaxRun = 256 * 1024;

} // namespace

void read_bytes(
    const File& file,
    uint64_t offset,
    std::span<std::byte> out,
    ReadCost& cost) {
  try {
    file.pread_exact(offset, out);
  } catch (const IoError& e) {
    throw PleReadError(e.what());
  }
  ++cost.calls;
  cost.bytes += out.size();
}

void read_runs(
    const File& file,
    const RunLayout& layout,
    std::span<const int64_t> rows,
    std::byte* out,
    ReadCost& cost) {
  std::vector<std::byte> run;
  for (size_t i = 0; i < rows.size();) {
    const uint64_t start = layout.offset_of(rows[i]);
    uint64_t end = start + layout.item_bytes;
    size_t n = 1;
    for (; i + n < rows.size(); ++n) {
      const uint64_t next = layout.offset_of(rows[i + n]);
      if (next > end + kMaxGap || next + layout.item_bytes > start + kMaxRun) {
        break;
      }
      end = next + layout.item_bytes;
    }
    if (n == 1) {
      read_bytes(file, start, {out, layout.item_bytes}, cost);
    } else {
      run.resize(end - start);
      read_bytes(file, start, run, cost);
      for (size_t k = 0; k < n; ++k) {
        std::memcpy(
            out + k * layout.out_stride,
            run.data() + (layout.offset_of(rows[i + k]) - start),
            layout.item_bytes);
      }
    }
    out += n * layout.out_stride;
    i += n;
  }
}

} // namespace qwenmtp::ple
