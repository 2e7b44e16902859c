/** Opens a stager as the settings want it. */
#pragma once

#include <cstdint>
#include <functional>
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
  /** See make_resident. */
  std::function<void(uint64_t done, uint64_t total)> progress = [](uint64_t,
                                                                   uint64_t) {};
};

/** Throws ModelFormatError, IoError, InvalidArgument, InsufficientMemory,
 *  PleReadError. */
std::shared_ptr<Stager> open_stager(
    NgramConfig config,
    TableSpec spec,
    const OpenOptions& options);

} // namespace qwenmtp::ple
