/** The bytes of a QWMTKV02 header: encoder and strict decoder, without files.
 *
 *  Little-endian; offsets from the start of the file. docs/checkpoint-format.md
 *  has the same tables with the reasons.
 *
 *    +0            prologue, 256 bytes
 *    +256          directory, 5 entries of 32 bytes: META TOKS TENS CRCS BNDS
 *    ...           the sections in that order, each on a 64-byte boundary
 *    header_bytes  tensors in schema order, each on a 16 KiB boundary;
 *    file_bytes    zeros between them and behind the last
 *
 *    prologue                                   rule
 *      0  u8[8]   magic                         QWMTKV02
 *      8  u16     layout major                  2
 *     10  u16     layout minor                  0
 *     12  u32     prologue bytes                256
 *     16  u64     file bytes                    the file's size
 *     24  u64     header bytes                  n * 16 KiB, at most 8 MiB
 *     32  u64     payload bytes                 file - header
 *     40  u32     flags                         1 MTP, 2 boundaries, 4 SHA-256
 *     44  u32     section count                 5
 *     48  u64     created, ns since the epoch   informative
 *     56  u64     commit epoch                  N
 *     64  u8[32]  identity digest               the model's
 *     96  u8[32]  owner digest                  SHA-256 of the session key
 *    128  u64     N, tokens                     1 .. max context
 *    136  u64     trunk length                  N
 *    144  u64     H, MTP history rows           AR: 0
 *    152  i64     MTP position base             AR: 0; MTP: base + H = N - 1
 *    160  u32     tensor count                  at most 8192
 *    164  u32     boundary count                at most 32
 *    168  u32     finish reason                 0 stop, 1 length, 2 tool_calls
 *    172  u32     mode                          0 AR, 1 MTP
 *    176  u8[16]  writer id                     random
 *    192  u8[32]  header digest                 SHA-256 of the header, here 0
 *    224  u8[32]  reserved                      0
 *
 *    directory entry
 *      0  u8[4] tag, 4 u16 version = 1, 6 u16 flags (1 critical),
 *      8  u64 offset, 16 u64 bytes, 24 u64 reserved = 0
 *
 *    META  JSON text for people, at most 64 KiB; decides nothing
 *    TOKS  N x u32 ids, each below the vocabulary size
 *    TENS  96 bytes a tensor
 *      0  u8 group, 1 u8 role, 2 u16 layer, 4 u16 boundary (0xFFFF none),
 *      6  u8 dtype, 7 u8 rank, 8 u32[4] dims (unused 1), 24 u64 offset,
 *     32  u64 bytes, 40 u32 first CRC, 44 u32 CRC count, 48 u64 valid rows,
 *     56  u8[32] SHA-256 or zeros, 88 u64 reserved = 0
 *    CRCS  u32 CRC-32 of each 4 MiB piece of each tensor
 *    BNDS  32 bytes a record
 *      0  u64 position, 8 u32 first tensor, 12 u32 tensor count,
 *     16  i32 hidden tensor or -1, 20 u32 reserved = 0, 24 u64 reserved = 0
 */
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "state/schema.h"

namespace qwenmtp::state {

using base::Digest;

inline constexpr size_t kPrologueBytes = 256;
inline constexpr uint64_t kPage = 16384;
inline constexpr uint64_t kMaxHeader = 8 << 20;
inline constexpr uint64_t kMaxFile = uint64_t{1} << 40;
inline constexpr uint64_t kMaxMeta = 64 << 10;
inline constexpr uint64_t kPiece = 4 << 20;

enum class Finish : uint32_t { stop = 0, length = 1, tool_calls = 2 };

/** What a checkpoint says beside its tensors. */
struct CheckpointHead {
  StateShape shape;
  int64_t position_base = 0;
  Finish finish = Finish::stop;
  uint64_t created_ns = 0;
  Digest identity{};
  Digest owner{};
  std::array<uint8_t, 16> writer_id{};
  std::vector<uint32_t> ids; // N
  std::string meta;
};

/** One tensor's place in the file. */
struct Extent {
  TensorSpec spec;
  uint64_t offset;
  uint64_t n_bytes;
  uint32_t first_crc;
  uint32_t n_crcs;
};

/** Where everything lies; a function of schema, N, META size and boundaries. */
struct CheckpointLayout {
  std::array<uint64_t, 5> section_offset;
  std::array<uint64_t, 5> section_bytes;
  std::vector<Extent> extents;
  uint32_t n_crcs = 0;
  uint64_t header_bytes = 0;
  uint64_t file_bytes = 0;
};

CheckpointLayout checkpoint_layout(
    std::span<const TensorSpec> specs,
    const StateShape& shape,
    uint64_t meta_bytes);

/** The header with its digest. crcs has layout.n_crcs values; hashes is empty
 *  or has one SHA-256 a tensor. Throws InvalidArgument when head breaks a rule
 *  of the tables above. */
std::vector<std::byte> encode_header(
    const CheckpointHead& head,
    const CheckpointLayout& layout,
    uint32_t vocab,
    std::span<const uint32_t> crcs,
    std::span<const Digest> hashes);

/** What a reader insists on; an empty field accepts anything lawful. */
struct Expectation {
  std::optional<Geometry> geometry;
  std::optional<Digest> identity;
  std::optional<Digest> owner;
  uint64_t max_context = kMaxHeader / 4;
  uint64_t max_payload = kMaxFile; // bytes of tensors the caller can hold
};

struct Prologue {
  uint64_t file_bytes;
  uint64_t header_bytes;
  uint32_t flags;
  uint32_t n_tensors;
  uint32_t n_boundaries;
  Digest header_digest;
  CheckpointHead head; // without boundaries, ids and meta
};

struct Header {
  CheckpointHead head;
  uint64_t file_bytes;
  uint64_t header_bytes;
  std::vector<Extent> extents;
  std::vector<uint32_t> crcs;
  std::vector<Digest> hashes; // empty when the file has none
};

/** head: the first bytes of the file, up to 256. Throws CheckpointError with
 *  outcome old_version, foreign, corrupt or incompatible. */
Prologue parse_prologue(
    std::span<const std::byte> head,
    uint64_t file_bytes,
    const Expectation& expect);

/** data: all header_bytes. Compares every tensor record with the schema of
 *  expect.geometry, else with that of the geometry the records imply. Throws
 *  CheckpointError corrupt, or busy when max_payload is too small. */
Header parse_header(
    std::span<const std::byte> data,
    const Prologue& prologue,
    const Expectation& expect);

} // namespace qwenmtp::state
