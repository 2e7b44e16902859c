/** Reads and nothing else: the rate that a machine gives, beside which a
 *  stager is measured. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace qwenmtp::ple {

/** n_bytes at every offset of a file, each by a pread of its own, the offsets
 *  split evenly over n_threads >= 1. Throws IoError. */
void bare_reads(
    const std::string& path,
    std::span<const int64_t> offsets,
    size_t n_bytes,
    int n_threads);

} // namespace qwenmtp::ple
