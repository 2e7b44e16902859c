#include "ple/stager.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/trace.h"

namespace qwenmtp::ple {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxFailures = 3;
constexpr size_t kMaxSliceRows = 256;
constexpr size_t kDecodeSlice = 512;
constexpr size_t kMaxAheadRows = 4 * kMaxLookup;
constexpr int kMaxAge = 2; // embeds after which unused rows are dropped

uint64_t ns_since(Clock::time_point start) {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(Clock::now() - start).count());
}

size_t ceil_div(size_t a, size_t b) {
  return (a + b - 1) / b;
}

// A few slices per thread even out their speed; small ones keep a device busy
// that likes many requests at once.
size_t rows_per_slice(size_t n_rows, size_t n_threads) {
  return std::clamp<size_t>(n_rows / (4 * (n_threads + 1)), 1, kMaxSliceRows);
}

// Calls block(ids, history) for pieces that fit one lookup.
template <typename Block>
void for_blocks(
    const NgramConfig& config,
    std::span<const int32_t> ids,
    std::span<const int64_t> history,
    Block&& block) {
  const size_t most =
      std::max<size_t>(kMaxLookup / static_cast<size_t>(config.heads()), 1);
  std::vector<int64_t> past(history.begin(), history.end());
  while (!ids.empty()) {
    const auto piece = ids.first(std::min(most, ids.size()));
    block(piece, std::span<const int64_t>(past));
    past.insert(past.end(), piece.begin(), piece.end());
    past.erase(past.begin(), past.end() - history.size());
    ids = ids.subspan(piece.size());
  }
}

} // namespace

/** Rows on their way into memory. */
struct Stager::Reads {
  Reads(Stager& stager, std::vector<int64_t> rows_to_read)
      : rows(std::move(rows_to_read)),
        record_bytes(stager.table_.format().record_bytes()),
        slice_rows(rows_per_slice(rows.size(), stager.pool_.n_threads())),
        records(std::make_unique_for_overwrite<std::byte[]>(
            rows.size() * record_bytes)),
        job(ceil_div(rows.size(), slice_rows),
            [this, &stager](size_t i) { stager.read_slice(*this, i); }) {
  }

  std::byte* record(size_t i) const {
    return records.get() + i * record_bytes;
  }

  const std::vector<int64_t> rows; // ascending
  const size_t record_bytes;
  const size_t slice_rows;
  const std::unique_ptr<std::byte[]> records; // [rows], valid once job is done
  std::atomic<uint64_t> read_calls{0};
  std::atomic<uint64_t> read_bytes{0};
  size_t n_used = 0;
  int age = 0;
  Job job;
};

/** Where the records of a lookup lie. */
struct Stager::Fetched {
  std::vector<const std::byte*> records; // [rows]; hot ones until an insert
  std::vector<size_t> fresh;             // rows that are not in hot_
  std::vector<std::shared_ptr<Reads>> owners;

  void own(std::shared_ptr<Reads> reads, std::span<const size_t> which) {
    fresh.insert(fresh.end(), which.begin(), which.end());
    owners.push_back(std::move(reads));
  }

  /** `reads` are done and of exactly the rows `which`. */
  void take(std::shared_ptr<Reads> reads, std::span<const size_t> which) {
    for (size_t i = 0; i < which.size(); ++i) {
      records[which[i]] = reads->record(i);
    }
    own(std::move(reads), which);
  }
};

Stager::Stager(NgramConfig config, Table table, StagerOptions options)
    : config_(std::move(config)),
      table_(std::move(table)),
      hot_(
          table_.resident() != nullptr || !options.staging ? 0
                                                           : options.hot_bytes,
          table_.format().record_bytes()),
      staging_(options.staging),
      read_ahead_(
          options.staging && options.read_ahead && options.n_threads > 0),
      pool_(options.n_threads) {
  check(config_, table_.rows());
}

Stager::~Stager() {
  cancel();
}

void Stager::embed(
    std::span<const int32_t> ids,
    std::span<const int64_t> history,
    RowType type,
    void* out) {
  if (failures_in_a_row_ >= kMaxFailures) {
    throw PleReadError(
        "[ple.Stager.embed] " + std::to_string(failures_in_a_row_) +
        " reads in a row failed, expected the table to be opened again");
  }
  const trace::Span traced("rows", std::ssize(ids));
  const auto begin = Clock::now();
  const bool window = ids.size() <= kWindowTokens;
  SpanStats& span = window ? stats_.windows : stats_.chunks;
  const size_t token_bytes = static_cast<size_t>(config_.heads()) *
                             static_cast<size_t>(table_.format().dim) *
                             value_bytes(type);
  auto* p_out = static_cast<std::byte*>(out);
  try {
    for_blocks(config_, ids, history, [&](auto piece, auto past) {
      embed_block(piece, past, type, p_out, window);
      p_out += piece.size() * token_bytes;
    });
  } catch (const PleReadError&) {
    ++stats_.failures;
    ++failures_in_a_row_;
    retire();
    throw;
  }
  failures_in_a_row_ = 0;
  retire();
  ++span.calls;
  span.tokens += ids.size();
  span.stage_ns += ns_since(begin);
}

void Stager::embed_block(
    std::span<const int32_t> ids,
    std::span<const int64_t> history,
    RowType type,
    std::byte* out,
    bool window) {
  std::vector<int64_t> lookup(
      ids.size() * static_cast<size_t>(config_.heads()));
  ngram_rows(config_, ids, history, lookup.data());
  stats_.rows_requested += lookup.size();
  if (!staging_) {
    return table_.gather(lookup, type, out);
  }
  if (const std::byte* resident = table_.resident()) {
    const size_t record_bytes = table_.format().record_bytes();
    const auto record_of = [&](size_t slot) {
      return resident + static_cast<size_t>(lookup[slot]) * record_bytes;
    };
    return decode(lookup.size(), record_of, type, out);
  }
  const UniqueRows unique = unique_rows(lookup);
  const Fetched fetched =
      fetch(unique.rows, window ? stats_.windows : stats_.chunks);
  const auto record_of = [&](size_t slot) {
    return fetched.records[unique.of_slot[slot]];
  };
  decode(lookup.size(), record_of, type, out);
  if (window) { // a chunk would push out what decoding comes back to
    for (const size_t i : fetched.fresh) {
      hot_.insert(unique.rows[i], fetched.records[i]);
    }
  }
}

Stager::Fetched Stager::fetch(std::span<const int64_t> rows, SpanStats& span) {
  Fetched fetched;
  fetched.records.resize(rows.size());
  std::vector<size_t> cold;
  std::vector<std::vector<size_t>> ahead(ahead_.size());
  std::vector<size_t> cursors(ahead_.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    fetched.records[i] = hot_.find(rows[i]);
    if (fetched.records[i] != nullptr) {
      continue;
    }
    size_t k = 0;
    for (; k < ahead_.size(); ++k) {
      const auto& known = ahead_[k]->rows;
      size_t& at = cursors[k];
      while (at < known.size() && known[at] < rows[i]) {
        ++at;
      }
      if (at < known.size() && known[at] == rows[i]) {
        fetched.records[i] = ahead_[k]->record(at);
        ahead[k].push_back(i);
        break;
      }
    }
    if (k == ahead_.size()) {
      cold.push_back(i);
    }
  }
  const auto begin = Clock::now();
  const auto cold_reads = start(rows, cold);
  std::vector<size_t> again; // what reading ahead failed to read
  for (size_t k = 0; k < ahead_.size(); ++k) {
    if (ahead[k].empty()) {
      continue;
    }
    Reads& reads = *ahead_[k];
    if (finish(reads)) {
      reads.n_used += ahead[k].size();
      stats_.rows_ahead += ahead[k].size();
      fetched.own(ahead_[k], ahead[k]);
    } else {
      reads.age = kMaxAge;
      again.insert(again.end(), ahead[k].begin(), ahead[k].end());
    }
  }
  std::sort(again.begin(), again.end());
  const auto again_reads = start(rows, again);
  for (const auto& [reads, which] :
       {std::pair(cold_reads, &cold), std::pair(again_reads, &again)}) {
    if (!finish(*reads)) {
      std::rethrow_exception(reads->job.error());
    }
    fetched.take(reads, *which);
  }
  span.stall_ns += ns_since(begin);
  stats_.rows_distinct += rows.size();
  stats_.rows_cold += cold.size() + again.size();
  stats_.rows_hot += rows.size() - fetched.fresh.size();
  return fetched;
}

std::shared_ptr<Stager::Reads> Stager::start(
    std::span<const int64_t> rows,
    std::span<const size_t> which) {
  std::vector<int64_t> wanted;
  wanted.reserve(which.size());
  for (const size_t i : which) {
    wanted.push_back(rows[i]);
  }
  auto reads = std::make_shared<Reads>(*this, std::move(wanted));
  if (which.size() > reads->slice_rows) {
    pool_.submit({reads, &reads->job}, true);
  }
  return reads;
}

void Stager::read_slice(Reads& reads, size_t slice) {
  const size_t first = slice * reads.slice_rows;
  const size_t n = std::min(reads.slice_rows, reads.rows.size() - first);
  const trace::Span span("read", static_cast<int64_t>(n));
  ReadCost cost;
  table_.read({&reads.rows[first], n}, reads.record(first), cost);
  reads.read_calls.fetch_add(cost.calls, std::memory_order_relaxed);
  reads.read_bytes.fetch_add(cost.bytes, std::memory_order_relaxed);
}

/** Waits; false if a read failed. */
bool Stager::finish(Reads& reads) {
  const bool whole = reads.job.finish();
  charge(reads);
  return whole;
}

/** Moves what the reads have cost so far into the totals. */
void Stager::charge(Reads& reads) {
  stats_.read_calls += reads.read_calls.exchange(0);
  stats_.read_bytes += reads.read_bytes.exchange(0);
}

template <typename RecordOf>
void Stager::decode(
    size_t n,
    RecordOf record_of,
    RowType type,
    std::byte* out) {
  const RowFormat& format = table_.format();
  const size_t stride = static_cast<size_t>(format.dim) * value_bytes(type);
  const auto slice = [&](size_t i) {
    const size_t end = std::min(n, (i + 1) * kDecodeSlice);
    for (size_t slot = i * kDecodeSlice; slot < end; ++slot) {
      decode_row(format, record_of(slot), type, out + slot * stride);
    }
  };
  const auto job = std::make_shared<Job>(ceil_div(n, kDecodeSlice), slice);
  if (n > kDecodeSlice) {
    pool_.submit(job, true);
  }
  job->finish();
}

void Stager::request(
    std::span<const int32_t> ids,
    std::span<const int64_t> history) {
  for_blocks(config_, ids, history, [&](auto piece, auto past) {
    request_block(piece, past);
  });
}

void Stager::request_block(
    std::span<const int32_t> ids,
    std::span<const int64_t> history) {
  std::vector<int64_t> lookup(
      ids.size() * static_cast<size_t>(config_.heads()));
  ngram_rows(config_, ids, history, lookup.data());
  if (table_.resident() != nullptr || !read_ahead_) {
    return;
  }
  ++stats_.requests;
  size_t n_ahead = 0;
  std::vector<int64_t> rows = unique_rows(lookup).rows;
  std::erase_if(rows, [&](int64_t row) { return hot_.find(row) != nullptr; });
  for (const auto& reads : ahead_) {
    std::vector<int64_t> rest;
    std::set_difference(
        rows.begin(),
        rows.end(),
        reads->rows.begin(),
        reads->rows.end(),
        std::back_inserter(rest));
    rows.swap(rest);
    n_ahead += reads->rows.size();
  }
  if (rows.empty()) {
    return;
  }
  const bool urgent = ids.size() <= kWindowTokens;
  auto reads = std::make_shared<Reads>(*this, std::move(rows));
  if (n_ahead + reads->rows.size() > kMaxAheadRows ||
      !pool_.submit({reads, &reads->job}, urgent)) {
    ++stats_.requests_refused;
    return;
  }
  ahead_.push_back(std::move(reads));
}

void Stager::retire() {
  std::erase_if(ahead_, [&](const std::shared_ptr<Reads>& reads) {
    const size_t n_left = reads->rows.size() - reads->n_used;
    if (n_left > 0 && ++reads->age < kMaxAge) {
      return false;
    }
    reads->job.cancel();
    charge(*reads);
    stats_.rows_dropped += n_left;
    return true;
  });
}

void Stager::prewarm(uint64_t n_bytes) {
  if (n_bytes > 0 && !resident()) {
    prewarm_ = std::make_unique<Prewarm>(table_.extents(), n_bytes);
  }
}

void Stager::cancel() {
  for (const auto& reads : ahead_) {
    reads->age = kMaxAge;
  }
  retire();
}

} // namespace qwenmtp::ple
