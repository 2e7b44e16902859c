#include "ple/open.h"

#include <utility>

#include "ple/resident.h"

namespace qwenmtp::ple {

std::shared_ptr<Stager> open_stager(
    NgramConfig config,
    TableSpec spec,
    const OpenOptions& options) {
  spec.row_file = options.row_file;
  spec.checksums = options.checksums;
  Table table = Table::open(spec);
  if (options.resident_budget_bytes) {
    table = make_resident(
        table,
        *options.resident_budget_bytes,
        options.stager.n_threads,
        options.progress);
  }
  return std::make_shared<Stager>(
      std::move(config),
      std::move(table),
      options.stager);
}

} // namespace qwenmtp::ple
