#include "ple/stager.h"

#include <algorithm>
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
constexpr size_t kDecodeSlice = 512;
constexpr size_t kPrefetch = 8; // rows ahead
constexpr size_t kMaxAheadRows = 4 * kMaxLookup;
constexpr int kMaxAge = 2; // embeds after which unused rows are dropped

uint64_t ns_since(Clock::time_point start) {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(Clock::now() - start).count());
}

size_t ceil_div(size_t a, size_t b) {
  return (a + b - 1) / b;
}

uint64_t hot_budget(const Table& table, const StagerOptions& options) {
  if (table.resident() != nullptr || !options.staging) {
    return 0;
  }
  return std::min<uint64_t>(
      options.hot_bytes,
      HotRows::most_bytes(
          static_cast<uint64_t>(table.rows()),
          table.format().record_bytes()));
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

/** Where a lookup's rows are. */
struct Stager::Found {
  std::vector<const std::byte*> records;  // [rows], or null; until an insert
  std::vector<std::vector<size_t>> ahead; // for each of ahead_
  std::vector<size_t> ready;              // in hot_
  std::vector<size_t> cold;
};

Stager::Stager(NgramConfig config, Table table, StagerOptions options)
    : config_(std::move(config)),
      table_(std::move(table)),
      hot_(hot_budget(table_, options), table_.format().record_bytes()),
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
    return decode_resident(resident, lookup, type, out);
  }
  const UniqueRows unique = unique_rows(lookup);
  gather({table_.format(), unique, type, out}, window);
}

/** Values of rows that lie in memory, in any order. */
void Stager::decode_resident(
    const std::byte* table,
    std::span<const int64_t> lookup,
    RowType type,
    std::byte* out) {
  const RowFormat& format = table_.format();
  const size_t record_bytes = format.record_bytes();
  const size_t stride = static_cast<size_t>(format.dim) * value_bytes(type);
  const auto record_of = [&](size_t slot) {
    return table + static_cast<size_t>(lookup[slot]) * record_bytes;
  };
  parallel(lookup.size(), [&](size_t slot) {
    if (slot + kPrefetch < lookup.size()) {
      const std::byte* soon = record_of(slot + kPrefetch);
      __builtin_prefetch(soon);
      __builtin_prefetch(soon + record_bytes - 1);
    }
    decode_row(format, record_of(slot), type, out + slot * stride);
  });
}

Stager::Found Stager::find(std::span<const int64_t> rows) {
  Found found;
  found.records.resize(rows.size());
  found.ahead.resize(ahead_.size());
  std::vector<size_t> cursors(ahead_.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kPrefetch < rows.size()) {
      hot_.prefetch(rows[i + kPrefetch]);
    }
    found.records[i] = hot_.find(rows[i]);
    if (found.records[i] != nullptr) {
      found.ready.push_back(i);
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
        found.records[i] = ahead_[k]->record(at);
        found.ahead[k].push_back(i);
        break;
      }
    }
    if (k == ahead_.size()) {
      found.cold.push_back(i);
    }
  }
  return found;
}

void Stager::gather(const Sink& sink, bool window) {
  const auto& rows = sink.unique.rows;
  SpanStats& span = window ? stats_.windows : stats_.chunks;
  Found found = find(rows);
  const size_t n_hot = found.ready.size();
  auto begin = Clock::now();
  Direct cold(table_, pool_, sink, std::move(found.cold), found.records);
  std::vector<size_t> failed; // what reading ahead could not read
  for (size_t k = 0; k < found.ahead.size(); ++k) {
    const auto& which = found.ahead[k];
    if (which.empty()) {
      continue;
    }
    Reads& reads = *ahead_[k];
    if (finish(reads)) {
      reads.n_used += which.size();
      found.ready.insert(found.ready.end(), which.begin(), which.end());
    } else {
      reads.age = kMaxAge;
      failed.insert(failed.end(), which.begin(), which.end());
    }
  }
  std::sort(failed.begin(), failed.end());
  Direct again(table_, pool_, sink, std::move(failed), found.records);
  span.stall_ns += ns_since(begin);
  parallel(found.ready.size(), [&](size_t k) {
    sink.put(found.ready[k], found.records[found.ready[k]]);
  });
  begin = Clock::now();
  for (Direct* direct : {&cold, &again}) {
    if (!finish(direct->reads())) {
      std::rethrow_exception(direct->reads().job.error());
    }
  }
  span.stall_ns += ns_since(begin);
  const size_t n_cold = cold.size() + again.size();
  stats_.rows_distinct += rows.size();
  stats_.rows_hot += n_hot;
  stats_.rows_cold += n_cold;
  stats_.rows_ahead += rows.size() - n_hot - n_cold;
  if (!window) { // a chunk would push out what decoding comes back to
    return;
  }
  for (size_t k = 0; k < n_hot; ++k) {
    found.records[found.ready[k]] = nullptr; // stay where they are
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (found.records[i] != nullptr) {
      hot_.insert(rows[i], found.records[i]);
    }
  }
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

/** work(0) .. work(n - 1), in slices on all threads. */
template <typename Work>
void Stager::parallel(size_t n, Work work) {
  const auto job =
      std::make_shared<Job>(ceil_div(n, kDecodeSlice), [&](size_t s) {
        const size_t end = std::min(n, (s + 1) * kDecodeSlice);
        for (size_t i = s * kDecodeSlice; i < end; ++i) {
          work(i);
        }
      });
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
  auto reads =
      std::make_shared<Reads>(table_, pool_.n_threads(), std::move(rows));
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
