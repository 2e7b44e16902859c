/** The door of this room: token ids in, values of their n-gram rows out. Owns
 *  the read threads, the hot rows and what was read ahead. One thread at a time
 *  calls it. What it returns depends on the ids alone, never on what was
 *  cached, requested or read by whom. */
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ple/hot_rows.h"
#include "ple/ngram.h"
#include "ple/pool.h"
#include "ple/prewarm.h"
#include "ple/reads.h"
#include "ple/stager_stats.h"
#include "ple/table.h"
#include "ple/unique_rows.h"

namespace qwenmtp::ple {

struct StagerOptions {
  int n_threads = 8;                 // 0..32; 0: the caller reads
  uint64_t hot_bytes = 256ULL << 20; // slab of hot rows, 0: none
  bool read_ahead = true;            // false: requests are ignored
  bool staging = true; // false: Table::gather, row by row; nothing else
};

class Stager {
 public:
  static constexpr size_t kWindowTokens = 256;

  /** Throws ModelFormatError if the heads do not fit the table,
   *  InvalidArgument for options out of range. */
  Stager(NgramConfig config, Table table, StagerOptions options = {});
  ~Stager();

  const NgramConfig& config() const {
    return config_;
  }

  const RowFormat& format() const {
    return table_.format();
  }

  /** The whole table is in memory; nothing is staged, cached or read. */
  bool resident() const {
    return table_.resident() != nullptr;
  }

  /** Values [n, heads * dim] of `ids` [n] in `type`; `history` as in
   *  ngram_rows. Throws PleReadError; `out` is then unspecified and nothing
   *  that a later call can see has changed. */
  void embed(
      std::span<const int32_t> ids,
      std::span<const int64_t> history,
      RowType type,
      void* out);

  /** Starts reading what embed will want: the next chunk while this one
   *  computes, a token as soon as it is known. Never waits, and fails only for
   *  ids or a history that embed would refuse. A failed read is read again by
   *  embed. Kept until used, for at most two embeds. */
  void request(std::span<const int32_t> ids, std::span<const int64_t> history);

  /** Drops everything requested and not used. */
  void cancel();

  /** Reads n_bytes of the table in the background, for the page cache. */
  void prewarm(uint64_t n_bytes);
  PrewarmReceipt prewarmed() const {
    return prewarm_ ? prewarm_->receipt() : PrewarmReceipt{};
  }

  /** Forgets the hot rows. */
  void clear_hot() {
    hot_.clear();
  }

  const StagerStats& stats() const {
    return stats_;
  }

 private:
  struct Found;

  void embed_block(
      std::span<const int32_t> ids,
      std::span<const int64_t> history,
      RowType type,
      std::byte* out,
      bool window);
  void request_block(
      std::span<const int32_t> ids,
      std::span<const int64_t> history);
  Found find(std::span<const int64_t> rows);
  void gather(const Sink& sink, bool window);
  void decode_resident(
      const std::byte* table,
      std::span<const int64_t> lookup,
      RowType type,
      std::byte* out);
  template <typename Work>
  void parallel(size_t n, Work work);
  bool finish(Reads& reads);
  void charge(Reads& reads);
  void retire();

  NgramConfig config_;
  Table table_;
  HotRows hot_;
  std::vector<std::shared_ptr<Reads>> ahead_; // oldest first, rows disjoint
  StagerStats stats_;
  bool staging_;
  bool read_ahead_;
  int failures_in_a_row_ = 0;
  std::unique_ptr<Prewarm> prewarm_;
  Pool pool_; // last: its threads end before what they write to
};

} // namespace qwenmtp::ple
