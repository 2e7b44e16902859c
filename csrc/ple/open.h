/** Opens a stager as the settings want it. */
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ple/stager.h"

namespace qwenmtp::ple {

struct OpenOptions {
  StagerOptions stager;
  std::string row_file = ""; // read the rows here; see row_file.h
  bool checksums = false;    // of its blocks, on first touch
  /** With a budget the table is read into memory as a whole; resident.h. */
  std::optional<uint64_t> resident_budget_bytes;
};

/** Throws ModelFormatError, IoError, InvalidArgument, InsufficientMemory,
 *  PleReadError. */
std::shared_ptr<Stager> open_stager(
    NgramConfig config,
    TableSpec spec,
    const OpenOptions& options);

} // namespace qwenmtp::ple
