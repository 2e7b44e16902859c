#include "ple/row_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/bytes.h"
#include "base/crc32.h"
#include "base/error.h"
#include "base/file.h"
#include "ple/read_run.h"

namespace qwenmtp::ple {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kCrcBytes = 4;
constexpr int64_t kSampleRows = 256;
constexpr char kMagic[8] = {'Q', 'W', 'M', 'R', 'O', 'W', 'S', '1'};

using Header = std::array<std::byte, kPage>;

uint32_t coding_number(Coding coding) {
  switch (coding) {
    case Coding::kBf16:
      return 0;
    case Coding::kAffine:
      return 1;
    case Coding::kFp8:
      return 2;
    case Coding::kF32:
      break;
  }
  return 3;
}

Header make_header(const RowFormat& format, const BlockLayout& layout) {
  const bool affine = format.coding == Coding::kAffine;
  const auto u32 = [](auto value) { return static_cast<uint32_t>(value); };
  Header header{};
  base::ByteWriter out(header);
  out.copy(std::as_bytes(std::span(kMagic)));
  out.put(coding_number(format.coding));
  out.put(u32(format.dim));
  out.put(u32(affine ? format.bits : 0));
  out.put(u32(affine ? format.group_size : 0));
  out.put(std::bit_cast<uint32_t>(
      format.coding == Coding::kFp8 ? format.fp8_scale : 1.0f));
  out.put(u32(layout.record_bytes));
  out.put(u32(layout.records_per_block));
  out.put(u32(layout.block_bytes));
  out.put(static_cast<uint64_t>(layout.rows));
  out.put(layout.file_bytes());
  const uint32_t crc =
      base::crc32(0, std::span(header).first(kPage - kCrcBytes));
  std::memcpy(header.data() + kPage - kCrcBytes, &crc, kCrcBytes);
  return header;
}

uint32_t block_crc(int64_t block, std::span<const std::byte> payload) {
  const uint32_t crc =
      base::crc32(0, std::as_bytes(std::span<const int64_t>(&block, 1)));
  return base::crc32(crc, payload);
}

class RowFileSource final : public RowSource {
 public:
  RowFileSource(File file, const BlockLayout& layout, bool checksums)
      : file_(std::move(file)), layout_(layout) {
    if (checksums) {
      verified_ = std::vector<std::atomic<uint8_t>>(
          static_cast<size_t>(layout.n_blocks()));
    }
  }

  void read(std::span<const int64_t> rows, std::byte* records, ReadCost& cost)
      const override {
    if (verified_.empty()) {
      return read_records(rows, records, cost);
    }
    std::vector<std::byte> block_bytes(layout_.block_bytes);
    while (!rows.empty()) {
      const int64_t block = rows[0] / layout_.records_per_block;
      const int64_t first = block * layout_.records_per_block;
      const auto end = std::lower_bound(
          rows.begin(),
          rows.end(),
          first + layout_.records_per_block);
      const auto here = rows.first(static_cast<size_t>(end - rows.begin()));
      std::atomic<uint8_t>& verified = verified_[static_cast<size_t>(block)];
      if (verified.load(std::memory_order_relaxed) != 0) {
        read_records(here, records, cost);
      } else {
        read_block(block, block_bytes, cost);
        verified.store(1, std::memory_order_relaxed);
        for (size_t i = 0; i < here.size(); ++i) {
          const auto at = static_cast<size_t>(here[i] - first);
          std::memcpy(
              records + i * layout_.record_bytes,
              block_bytes.data() + at * layout_.record_bytes,
              layout_.record_bytes);
        }
      }
      records += here.size() * layout_.record_bytes;
      rows = rows.subspan(here.size());
    }
  }

  std::vector<Extent> extents() const override {
    return {{file_.path(), 0, layout_.file_bytes()}};
  }

 private:
  void read_records(
      std::span<const int64_t> rows,
      std::byte* records,
      ReadCost& cost) const {
    const RunLayout runs{
        .offset = layout_.block_offset(0),
        .first_row = 0,
        .item_bytes = layout_.record_bytes,
        .out_stride = layout_.record_bytes,
        .items_per_block = layout_.records_per_block,
        .block_bytes = layout_.block_bytes};
    read_runs(file_, runs, rows, records, cost);
  }

  void read_block(int64_t block, std::span<std::byte> out, ReadCost& cost)
      const {
    read_bytes(file_, layout_.block_offset(block), out, cost);
    const auto payload = out.first(out.size() - kCrcBytes);
    uint32_t stored;
    std::memcpy(&stored, out.data() + payload.size(), kCrcBytes);
    const uint32_t computed = block_crc(block, payload);
    if (stored != computed) {
      throw PleReadError(
          "[ple.RowFile] " + file_.path() + ": block " + std::to_string(block) +
          " has checksum " + std::to_string(computed) + ", expected " +
          std::to_string(stored));
    }
  }

  File file_;
  BlockLayout layout_;
  mutable std::vector<std::atomic<uint8_t>> verified_;
};

// Rows spread over the table, first and last among them.
std::vector<int64_t> sample_rows(int64_t rows) {
  std::vector<int64_t> sample;
  const int64_t n = std::min(rows, kSampleRows);
  for (int64_t i = 0; i < n; ++i) {
    sample.push_back(n == 1 ? 0 : i * ((rows - 1) / (n - 1)));
  }
  sample.back() = rows - 1;
  return sample;
}

int64_t differing_row(
    const Table& a,
    const Table& b,
    std::span<const int64_t> rows) {
  const size_t record_bytes = a.format().record_bytes();
  std::vector<std::byte> one(rows.size() * record_bytes);
  std::vector<std::byte> other(one.size());
  ReadCost cost;
  a.read(rows, one.data(), cost);
  b.read(rows, other.data(), cost);
  const auto at = std::mismatch(one.begin(), one.end(), other.begin()).first;
  return at == one.end()
             ? -1
             : rows[static_cast<size_t>(at - one.begin()) / record_bytes];
}

} // namespace

BlockLayout::BlockLayout(const RowFormat& format, int64_t n_rows)
    : rows(n_rows),
      record_bytes(format.record_bytes()),
      block_bytes((record_bytes + kCrcBytes + kPage - 1) / kPage * kPage),
      records_per_block(
          static_cast<int64_t>((block_bytes - kCrcBytes) / record_bytes)) {
}

uint64_t BlockLayout::block_offset(int64_t block) const {
  return kPage + static_cast<uint64_t>(block) * block_bytes;
}

Table open_row_file(
    const std::string& path,
    const Table& source,
    bool checksums) {
  File file(path);
  const BlockLayout layout(source.format(), source.rows());
  if (file.size() != layout.file_bytes()) {
    throw ModelFormatError(
        "[ple.RowFile] " + path + " has " + std::to_string(file.size()) +
        " bytes, expected " + std::to_string(layout.file_bytes()));
  }
  Header header;
  file.pread_exact(0, header);
  if (header != make_header(source.format(), layout)) {
    throw ModelFormatError(
        "[ple.RowFile] " + path +
        " has another header, expected that of this table's geometry");
  }
  Table table(
      source.format(),
      source.rows(),
      std::make_unique<RowFileSource>(std::move(file), layout, checksums));
  const int64_t row = differing_row(source, table, sample_rows(source.rows()));
  if (row >= 0) {
    throw ModelFormatError(
        "[ple.RowFile] " + path + ": row " + std::to_string(row) +
        " differs, expected a row file made from this table");
  }
  return table;
}

RowFileWriter::RowFileWriter(const Table& source, const std::string& path)
    : source_(source), layout_(source.format(), source.rows()) {
  const std::filesystem::path target(path);
  const auto folder =
      target.has_parent_path() ? target.parent_path().string() : ".";
  dir_fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir_fd_ < 0) {
    throw IoError(
        "[ple.RowFile] " + folder + ": " + std::strerror(errno) +
        ", expected a folder");
  }
  try {
    file_ = std::make_unique<base::Publication>(
        dir_fd_,
        target.filename().string());
    file_->reserve(layout_.file_bytes());
  } catch (...) {
    file_.reset();
    ::close(dir_fd_);
    throw;
  }
}

RowFileWriter::~RowFileWriter() {
  file_.reset();
  ::close(dir_fd_);
}

void RowFileWriter::step(int64_t n_rows) {
  const int64_t per_block = layout_.records_per_block;
  const int64_t wanted = std::max(n_rows / per_block, int64_t{1}) * per_block;
  const int64_t n = std::min(wanted, layout_.rows - rows_done_);
  if (n == 0) {
    return;
  }
  std::vector<int64_t> rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), rows_done_);
  records_.resize(rows.size() * layout_.record_bytes);
  ReadCost cost;
  source_.read(rows, records_.data(), cost);

  const int64_t first_block = rows_done_ / per_block;
  const auto n_blocks = static_cast<size_t>((n + per_block - 1) / per_block);
  const size_t used = static_cast<size_t>(per_block) * layout_.record_bytes;
  blocks_.assign(n_blocks * layout_.block_bytes, std::byte{0});
  for (size_t b = 0; b < n_blocks; ++b) {
    std::byte* block = blocks_.data() + b * layout_.block_bytes;
    const size_t payload = layout_.block_bytes - kCrcBytes;
    std::memcpy(
        block,
        records_.data() + b * used,
        std::min(used, records_.size() - b * used));
    const uint32_t crc =
        block_crc(first_block + static_cast<int64_t>(b), {block, payload});
    std::memcpy(block + payload, &crc, kCrcBytes);
  }
  file_->write_at(blocks_, layout_.block_offset(first_block));
  rows_done_ += n;
}

void RowFileWriter::commit() {
  if (rows_done_ != layout_.rows) {
    throw InternalError(
        "[ple.RowFile.commit] " + std::to_string(rows_done_) +
        " rows written, expected " + std::to_string(layout_.rows));
  }
  file_->write_at(make_header(source_.format(), layout_), 0);
  file_->commit(base::Durability::full);
}

int64_t first_difference(
    const Table& a,
    const Table& b,
    int64_t first,
    int64_t n) {
  std::vector<int64_t> rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), first);
  return differing_row(a, b, rows);
}

} // namespace qwenmtp::ple
