#include "ple/bare_reads.h"

#include <memory>
#include <vector>

#include "base/file.h"
#include "ple/pool.h"

namespace qwenmtp::ple {

void bare_reads(
    const std::string& path,
    std::span<const int64_t> offsets,
    size_t n_bytes,
    int n_threads) {
  const File file(path);
  const auto n_parts = static_cast<size_t>(n_threads);
  const auto job = std::make_shared<Job>(n_parts, [&](size_t part) {
    std::vector<std::byte> out(n_bytes);
    const size_t end = (part + 1) * offsets.size() / n_parts;
    for (size_t i = part * offsets.size() / n_parts; i < end; ++i) {
      file.pread_exact(static_cast<uint64_t>(offsets[i]), out);
    }
  });
  Pool pool(n_threads - 1);
  pool.submit(job, true);
  if (!job->finish()) {
    std::rethrow_exception(job->error());
  }
}

} // namespace qwenmtp::ple
