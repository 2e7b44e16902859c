#include "ple/reads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/trace.h"

namespace qwenmtp::ple {
namespace {

constexpr size_t kMaxSliceRows = 256;

// A few slices per thread even out their speed; small ones keep a device busy
// that likes many requests at once.
size_t rows_per_slice(size_t n_rows, size_t n_threads) {
  return std::clamp<size_t>(n_rows / (4 * (n_threads + 1)), 1, kMaxSliceRows);
}

std::vector<int64_t> picked(
    std::span<const int64_t> rows,
    std::span<const size_t> which) {
  std::vector<int64_t> out;
  out.reserve(which.size());
  for (const size_t i : which) {
    out.push_back(rows[i]);
  }
  return out;
}

} // namespace

void Sink::put(size_t i, const std::byte* record) const {
  const size_t stride = static_cast<size_t>(format.dim) * value_bytes(type);
  const auto slots = unique.slots_of(i);
  std::byte* first = out + slots[0] * stride;
  decode_row(format, record, type, first);
  for (const uint16_t slot : slots.subspan(1)) {
    std::memcpy(out + slot * stride, first, stride);
  }
}

Reads::Reads(
    const Table& table,
    size_t n_threads,
    std::vector<int64_t> rows_to_read,
    Then after)
    : rows(std::move(rows_to_read)),
      then(std::move(after)),
      record_bytes(table.format().record_bytes()),
      slice_rows(rows_per_slice(rows.size(), n_threads)),
      records(std::make_unique_for_overwrite<std::byte[]>(
          rows.size() * record_bytes)),
      job((rows.size() + slice_rows - 1) / slice_rows,
          [this, &table](size_t slice) { read_slice(table, slice); }) {
}

void Reads::read_slice(const Table& table, size_t slice) {
  const size_t first = slice * slice_rows;
  const size_t n = std::min(slice_rows, rows.size() - first);
  ReadCost cost;
  const trace::Span span("read", static_cast<int64_t>(n));
  table.read({&rows[first], n}, record(first), cost);
  read_calls.fetch_add(cost.calls, std::memory_order_relaxed);
  read_bytes.fetch_add(cost.bytes, std::memory_order_relaxed);
  for (size_t i = first; then && i < first + n; ++i) {
    then(i, record(i));
  }
}

Direct::Direct(
    const Table& table,
    Pool& pool,
    const Sink& sink,
    std::vector<size_t> which,
    std::vector<const std::byte*>& records)
    : which_(std::move(which)),
      reads_(std::make_shared<Reads>(
          table,
          pool.n_threads(),
          picked(sink.unique.rows, which_),
          [this, &sink, &records](size_t k, const std::byte* record) {
            records[which_[k]] = record;
            sink.put(which_[k], record);
          })) {
  if (which_.size() > reads_->slice_rows) {
    pool.submit({reads_, &reads_->job}, true);
  }
}

Direct::~Direct() {
  reads_->job.cancel();
  reads_->job.finish();
}

} // namespace qwenmtp::ple
