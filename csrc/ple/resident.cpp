#include "ple/resident.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "ple/pool.h"

namespace qwenmtp::ple {
namespace {

constexpr int64_t kSliceRows = 16384;
constexpr int64_t kStepSlices = 64;

class ResidentSource final : public RowSource {
 public:
  ResidentSource(std::unique_ptr<std::byte[]> records, size_t record_bytes)
      : records_(std::move(records)), record_bytes_(record_bytes) {
  }

  void read(std::span<const int64_t> rows, std::byte* records, ReadCost&)
      const override {
    for (const int64_t row : rows) {
      std::memcpy(
          records,
          records_.get() + static_cast<size_t>(row) * record_bytes_,
          record_bytes_);
      records += record_bytes_;
    }
  }

  const std::byte* resident() const override {
    return records_.get();
  }

 private:
  std::unique_ptr<std::byte[]> records_;
  size_t record_bytes_;
};

} // namespace

Table make_resident(
    const Table& source,
    uint64_t budget_bytes,
    int n_threads,
    const std::function<void(uint64_t done, uint64_t total)>& progress) {
  const uint64_t total = source.bytes();
  if (total > budget_bytes) {
    throw InsufficientMemory(
        "[ple.make_resident] the table has " + std::to_string(total) +
        " bytes, expected at most " + std::to_string(budget_bytes));
  }
  const size_t record_bytes = source.format().record_bytes();
  std::unique_ptr<std::byte[]> records(new (std::nothrow) std::byte[total]);
  if (records == nullptr) {
    throw InsufficientMemory(
        "[ple.make_resident] no memory for a table of " +
        std::to_string(total) + " bytes");
  }
  Pool pool(n_threads);
  for (int64_t first = 0; first < source.rows();) {
    progress(static_cast<uint64_t>(first) * record_bytes, total);
    const int64_t end =
        std::min(source.rows(), first + kStepSlices * kSliceRows);
    const auto job = std::make_shared<Job>(
        static_cast<size_t>((end - first + kSliceRows - 1) / kSliceRows),
        [&, first, end](size_t i) {
          const int64_t begin = first + static_cast<int64_t>(i) * kSliceRows;
          std::vector<int64_t> rows(
              static_cast<size_t>(std::min(kSliceRows, end - begin)));
          std::iota(rows.begin(), rows.end(), begin);
          ReadCost cost;
          source.read(
              rows,
              records.get() + static_cast<size_t>(begin) * record_bytes,
              cost);
        });
    pool.submit(job, false);
    if (!job->finish()) {
      std::rethrow_exception(job->error());
    }
    first = end;
  }
  progress(total, total);
  return {
      source.format(),
      source.rows(),
      std::make_unique<ResidentSource>(std::move(records), record_bytes)};
}

} // namespace qwenmtp::ple
