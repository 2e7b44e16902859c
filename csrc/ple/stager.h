/** The door of this room: token ids in, values of their n-gram rows out. */
#pragma once

#include <cstdint>
#include <span>

#include "ple/ngram.h"
#include "ple/table.h"

namespace qwenmtp::ple {

class Stager {
 public:
  /** Throws ModelFormatError if the heads do not fit the table. */
  Stager(NgramConfig config, Table table);

  const NgramConfig& config() const {
    return config_;
  }

  const RowFormat& format() const {
    return table_.format();
  }

  /** Values [n, heads * dim] of `ids` [n] in `type`; `history` as in
   *  ngram_rows. Throws PleReadError; `out` is then unspecified and nothing
   *  else has changed. */
  void embed(
      std::span<const int32_t> ids,
      std::span<const int64_t> history,
      RowType type,
      void* out);

 private:
  NgramConfig config_;
  Table table_;
};

} // namespace qwenmtp::ple
