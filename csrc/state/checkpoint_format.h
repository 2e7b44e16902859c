/** Private to checkpoint_layout.cpp and checkpoint_parse.cpp: the constants and
 *  records that encoder and decoder share. */
#pragma once

#include <string_view>

#include "base/bytes.h"
#include "state/checkpoint_layout.h"

namespace qwenmtp::state {

inline constexpr std::string_view kMagic = "QWMTKV02";
inline constexpr std::string_view kOldMagic = "QWMTKV01";
inline constexpr std::array<std::string_view, 5> kTags =
    {"META", "TOKS", "TENS", "CRCS", "BNDS"};
enum Section : size_t { kMeta, kToks, kTens, kCrcs, kBnds };

inline constexpr uint32_t kFlagMtp = 1;
inline constexpr uint32_t kFlagBoundaries = 2;
inline constexpr uint32_t kFlagHashes = 4;
inline constexpr uint16_t kCritical = 1;
inline constexpr size_t kDirEntryBytes = 32;
inline constexpr size_t kTensorBytes = 96;
inline constexpr size_t kBoundaryBytes = 32;
inline constexpr size_t kDigestAt = 192; // header digest, in the file
inline constexpr size_t kHashAt = 56;    // SHA-256, in a tensor record

/** Tensors of one boundary record: they are neighbours in the schema. */
struct BoundaryRange {
  uint32_t first = 0;
  uint32_t count = 0;
  int32_t hidden = -1;
};

/** Indexed by boundary; from the schema alone. */
std::vector<BoundaryRange> boundary_ranges(
    std::span<const Extent> extents,
    size_t n_boundaries);

/** SHA-256 of the header with its own digest field read as zeros. */
Digest header_digest(std::span<const std::byte> header);

/** Appends one TENS record. */
void put_record(base::ByteWriter& out, const Extent& e, const Digest& hash);

/** The rules of N, H, base and boundaries; throw CheckpointError corrupt. */
void check_shape(const CheckpointHead& head, uint64_t max_context);
void check_boundaries(const StateShape& shape);
void check_ids(std::span<const uint32_t> ids, uint32_t vocab);

/** Throws CheckpointError corrupt unless holds. */
void check(bool holds, const char* reason, const std::string& fact);

} // namespace qwenmtp::state
