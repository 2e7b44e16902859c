/** Planar arrays: each row is read from one to three places. */
#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "ple/planar.h"
#include "ple/read_run.h"

namespace qwenmtp::ple {
namespace {

struct OpenPlane {
  const File* file;
  uint64_t offset;
};

struct OpenShard {
  int64_t first;
  int64_t end;
  std::array<OpenPlane, 3> planes;
};

class PlanarSource final : public RowSource {
 public:
  explicit PlanarSource(const TableSpec& spec) : format_(spec.format) {
    for (const Shard& shard : spec.shards) {
      add(shard);
    }
  }

  int64_t rows() const {
    return shards_.empty() ? 0 : shards_.back().end;
  }

  void read(std::span<const int64_t> rows, std::byte* records, ReadCost& cost)
      const override {
    const size_t record_bytes = format_.record_bytes();
    size_t done = 0;
    while (done < rows.size()) {
      const OpenShard& shard = shard_of(rows[done]);
      const size_t n = static_cast<size_t>(
          std::lower_bound(rows.begin() + done, rows.end(), shard.end) -
          (rows.begin() + done));
      std::byte* out = records + done * record_bytes;
      for (int p = 0; p < format_.n_planes(); ++p) {
        const RunLayout layout{
            .offset = shard.planes[p].offset,
            .first_row = shard.first,
            .item_bytes = format_.plane_bytes(p),
            .out_stride = record_bytes,
        };
        read_runs(
            *shard.planes[p].file,
            layout,
            rows.subspan(done, n),
            out,
            cost);
        out += layout.item_bytes;
      }
      done += n;
    }
  }

  std::vector<Extent> extents() const override {
    std::vector<Extent> out;
    for (int p = format_.n_planes() - 1; p >= 0; --p) { // the weight is largest
      for (const OpenShard& shard : shards_) {
        const OpenPlane& plane = shard.planes[p];
        out.push_back(
            {plane.file->path(),
             plane.offset,
             static_cast<uint64_t>(shard.end - shard.first) *
                 format_.plane_bytes(p)});
      }
    }
    return out;
  }

 private:
  const OpenShard& shard_of(int64_t row) const {
    return *std::upper_bound(
        shards_.begin(),
        shards_.end(),
        row,
        [](int64_t r, const OpenShard& s) { return r < s.end; });
  }

  void add(const Shard& shard) {
    const auto n_planes = static_cast<size_t>(format_.n_planes());
    if (shard.rows < 1 || shard.planes.size() != n_planes) {
      throw ModelFormatError(
          "[ple.Table] shard of " + std::to_string(shard.rows) + " rows in " +
          std::to_string(shard.planes.size()) + " arrays, expected rows in " +
          std::to_string(n_planes));
    }
    OpenShard open{.first = rows(), .end = rows() + shard.rows, .planes = {}};
    for (size_t p = 0; p < n_planes; ++p) {
      const Plane& plane = shard.planes[p];
      const File& file =
          files_.try_emplace(plane.path, plane.path).first->second;
      const size_t item = format_.plane_bytes(static_cast<int>(p));
      if (plane.offset > file.size() || (file.size() - plane.offset) / item <
                                            static_cast<uint64_t>(shard.rows)) {
        throw ModelFormatError(
            "[ple.Table] " + plane.path + " has " +
            std::to_string(file.size()) + " bytes, expected " +
            std::to_string(shard.rows) + " rows of " + std::to_string(item) +
            " from byte " + std::to_string(plane.offset));
      }
      open.planes[p] = {&file, plane.offset};
    }
    shards_.push_back(open);
  }

  RowFormat format_;
  std::map<std::string, File> files_; // nodes never move
  std::vector<OpenShard> shards_;
};

} // namespace

Table open_planar(const TableSpec& spec) {
  check(spec.format);
  if (spec.shards.empty()) {
    throw ModelFormatError("[ple.Table] no shards, expected at least one");
  }
  auto source = std::make_unique<PlanarSource>(spec);
  const int64_t rows = source->rows();
  return {spec.format, rows, std::move(source)};
}

} // namespace qwenmtp::ple
