#include "ple/stager.h"

#include <utility>
#include <vector>

namespace qwenmtp::ple {

Stager::Stager(NgramConfig config, Table table)
    : config_(std::move(config)), table_(std::move(table)) {
  check(config_, table_.rows());
}

void Stager::embed(
    std::span<const int32_t> ids,
    std::span<const int64_t> history,
    RowType type,
    void* out) {
  std::vector<int64_t> rows(ids.size() * static_cast<size_t>(config_.heads()));
  ngram_rows(config_, ids, history, rows.data());
  table_.gather(rows, type, out);
}

} // namespace qwenmtp::ple
