#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "state/checkpoint_format.h"

namespace qwenmtp::state {
namespace {

using base::ByteReader;
using base::ByteWriter;
using Sections = std::array<std::span<const std::byte>, kTags.size()>;

[[noreturn]] void reject(
    const char* outcome,
    const char* reason,
    const std::string& fact) {
  throw CheckpointError(
      outcome,
      reason,
      std::string("[checkpoint.read] ") + fact);
}

bool all_zero(std::span<const std::byte> data) {
  return std::ranges::all_of(data, [](std::byte b) {
    return b == std::byte{0};
  });
}

/** The spec a record claims; its numbers are still unchecked. */
TensorSpec claimed_spec(std::span<const std::byte> record) {
  ByteReader in(record);
  auto group = in.take<uint8_t>();
  auto role = in.take<uint8_t>();
  TensorSpec s{};
  s.layer = in.take<uint16_t>();
  s.boundary = in.take<uint16_t>();
  auto dtype = in.take<uint8_t>();
  s.rank = in.take<uint8_t>();
  for (uint32_t& d : s.dims) {
    d = in.take<uint32_t>();
  }
  check(
      group >= 1 && group <= 4 && role >= 1 && role <= 10 && dtype >= 8 &&
          dtype <= 11,
      "tensor_record",
      "tensor of unknown group, role or dtype");
  s.group = static_cast<Group>(group);
  s.role = static_cast<Role>(role);
  s.dtype = static_cast<Dtype>(dtype);
  return s;
}

/** The geometry of a table without a model. Dimensions that could overflow a
 *  byte count never reach the schema. */
Geometry implied_geometry(
    std::span<const std::byte> table,
    const StateShape& shape,
    uint64_t file_bytes) {
  std::vector<TensorSpec> specs;
  for (size_t at = 0; at < table.size(); at += kTensorBytes) {
    specs.push_back(claimed_spec(table.subspan(at, kTensorBytes)));
    uint64_t n_items = 1;
    for (uint64_t d : specs.back().dims) {
      check(
          d > 0 && d <= file_bytes / n_items,
          "tensor_record",
          "tensor larger than the file");
      n_items *= d;
    }
  }
  Geometry g = infer_geometry(specs, shape);
  check(g.dtype != Dtype::i64, "tensor_record", "logits of dtype i64");
  // A lower bound of the schema's length, before it is built.
  uint64_t n_qsa = std::ranges::count(g.layers, LayerKind::qsa);
  uint64_t n_recurrent = g.layers.size() - n_qsa;
  check(
      3 * n_qsa + 2 * n_recurrent * (1 + shape.boundaries.size()) <=
          specs.size(),
      "tensor_count",
      "fewer tensors than the layers have");
  return g;
}

/** The rules on sizes and counts, on what follows offset 12 of the prologue. */
void take_sizes(ByteReader& in, Prologue& p, uint64_t file_bytes) {
  p.file_bytes = in.take<uint64_t>();
  check(
      p.file_bytes == file_bytes && file_bytes <= kMaxFile,
      "file_size",
      "file has " + std::to_string(file_bytes) + " bytes, expected " +
          std::to_string(p.file_bytes));
  p.header_bytes = in.take<uint64_t>();
  auto payload = in.take<uint64_t>();
  check(
      p.header_bytes % kPage == 0 && p.header_bytes >= kPage &&
          p.header_bytes <= std::min(kMaxHeader, file_bytes) &&
          payload == file_bytes - p.header_bytes,
      "header_bytes",
      "header or payload size is wrong");
  p.flags = in.take<uint32_t>();
  check(
      p.flags <= (kFlagMtp | kFlagBoundaries | kFlagHashes),
      "prologue",
      "unknown flags");
  check(in.take<uint32_t>() == kTags.size(), "counts", "not five sections");
}

/** The rules on lengths, history and mode, on what follows offset 48. */
void take_lengths(ByteReader& in, Prologue& p, uint64_t max_context) {
  StateShape& shape = p.head.shape;
  p.head.created_ns = in.take<uint64_t>();
  auto epoch = in.take<uint64_t>();
  in.fill(p.head.identity);
  in.fill(p.head.owner);
  shape.n_tokens = in.take<uint64_t>();
  auto trunk_len = in.take<uint64_t>();
  shape.history_len = in.take<uint64_t>();
  p.head.position_base = in.take<int64_t>();
  p.n_tensors = in.take<uint32_t>();
  p.n_boundaries = in.take<uint32_t>();
  auto finish = in.take<uint32_t>();
  auto mode = in.take<uint32_t>();
  check(
      epoch == shape.n_tokens && trunk_len == shape.n_tokens,
      "lengths",
      "epoch or trunk length differs from N");
  check(mode <= 1 && finish <= 2, "prologue", "unknown mode or finish reason");
  shape.mode = static_cast<Mode>(mode);
  p.head.finish = static_cast<Finish>(finish);
  check_shape(p.head, max_context);
  check(
      p.n_tensors <= kMaxTensors && p.n_boundaries <= kMaxBoundaries,
      "counts",
      "too many tensors or boundaries");
  check(
      ((p.flags & kFlagMtp) != 0) == (shape.mode == Mode::mtp) &&
          ((p.flags & kFlagBoundaries) != 0) == (p.n_boundaries > 0),
      "prologue",
      "flags disagree with mode or boundary count");
}

/** The sections, ascending and disjoint inside the header. */
Sections take_directory(std::span<const std::byte> header) {
  Sections sections;
  ByteReader in(header.subspan(kPrologueBytes));
  uint64_t end = kPrologueBytes + kDirEntryBytes * kTags.size();
  for (size_t i = 0; i < kTags.size(); ++i) {
    auto tag = in.bytes(4);
    auto version = in.take<uint16_t>();
    auto flags = in.take<uint16_t>();
    auto offset = in.take<uint64_t>();
    auto n_bytes = in.take<uint64_t>();
    auto reserved = in.take<uint64_t>();
    check(
        std::memcmp(tag.data(), kTags[i].data(), 4) == 0 && version == 1 &&
            flags <= kCritical && reserved == 0 && offset % 64 == 0 &&
            offset >= end && offset <= header.size() &&
            n_bytes <= header.size() - offset,
        "section",
        "directory entry " + std::to_string(i) + " is wrong");
    sections[i] = header.subspan(offset, n_bytes);
    end = offset + n_bytes;
  }
  return sections;
}

/** META, the ids and the boundary positions. */
void take_tokens(
    const Sections& sections,
    const Prologue& prologue,
    CheckpointHead& head) {
  StateShape& shape = head.shape;
  check(
      sections[kMeta].size() <= kMaxMeta &&
          sections[kToks].size() == 4 * shape.n_tokens &&
          sections[kTens].size() == kTensorBytes * prologue.n_tensors &&
          sections[kBnds].size() == kBoundaryBytes * prologue.n_boundaries,
      "section_size",
      "a section has the wrong size");
  head.meta.assign(
      reinterpret_cast<const char*>(sections[kMeta].data()),
      sections[kMeta].size());
  head.ids.resize(shape.n_tokens);
  ByteReader toks(sections[kToks]);
  for (uint32_t& id : head.ids) {
    id = toks.take<uint32_t>();
  }
  for (size_t b = 0; b < prologue.n_boundaries; ++b) {
    auto record = sections[kBnds].subspan(b * kBoundaryBytes, kBoundaryBytes);
    shape.boundaries.push_back(ByteReader(record).take<uint64_t>());
  }
  check_boundaries(shape);
}

/** The schema's extents into h, each compared with its record. */
void take_extents(
    std::span<const std::byte> table,
    uint32_t flags,
    CheckpointLayout layout,
    Header& h) {
  // Sections may leave more room than the tightest layout.
  const uint64_t shift = h.header_bytes - layout.header_bytes;
  check(
      layout.file_bytes + shift == h.file_bytes,
      "extent_end",
      "tensors do not end at the end of the file");
  std::array<std::byte, kTensorBytes> want;
  for (size_t i = 0; i < layout.extents.size(); ++i) {
    Extent& e = layout.extents[i];
    e.offset += shift;
    auto record = table.subspan(i * kTensorBytes, kTensorBytes);
    Digest hash{};
    if ((flags & kFlagHashes) != 0) {
      ByteReader(record.subspan(kHashAt)).fill(hash);
      h.hashes.push_back(hash);
    }
    ByteWriter out(want);
    put_record(out, e, hash);
    check(
        std::ranges::equal(record, want),
        "tensor_record",
        "tensor record " + std::to_string(i) + " differs from the schema");
  }
  h.extents = std::move(layout.extents);
}

void check_boundary_records(std::span<const std::byte> table, const Header& h) {
  auto ranges = boundary_ranges(h.extents, h.head.shape.boundaries.size());
  ByteReader in(table);
  for (size_t b = 0; b < ranges.size(); ++b) {
    in.take<uint64_t>(); // the position, already checked
    check(
        in.take<uint32_t>() == ranges[b].first &&
            in.take<uint32_t>() == ranges[b].count &&
            in.take<int32_t>() == ranges[b].hidden && all_zero(in.bytes(12)),
        "boundary_record",
        "boundary record " + std::to_string(b) + " differs from the schema");
  }
}

} // namespace

void check(bool holds, const char* reason, const std::string& fact) {
  if (!holds) {
    reject("corrupt", reason, fact);
  }
}

void check_shape(const CheckpointHead& head, uint64_t max_context) {
  const StateShape& s = head.shape;
  check(
      s.n_tokens >= 1 && s.n_tokens <= max_context,
      "lengths",
      "N = " + std::to_string(s.n_tokens) + ", expected 1.." +
          std::to_string(max_context));
  bool history = s.mode == Mode::ar
                     ? s.history_len == 0 && head.position_base == 0
                     : head.position_base >= 0 && s.history_len < s.n_tokens &&
                           static_cast<uint64_t>(head.position_base) ==
                               s.n_tokens - 1 - s.history_len;
  check(history, "history", "history length and position base disagree with N");
}

void check_boundaries(const StateShape& shape) {
  uint64_t last = 0;
  for (uint64_t position : shape.boundaries) {
    check(
        position > last && position <= shape.n_tokens,
        "boundary_position",
        "boundaries not ascending in 1..N");
    last = position;
  }
}

void check_ids(std::span<const uint32_t> ids, uint32_t vocab) {
  check(
      std::ranges::all_of(ids, [&](uint32_t id) { return id < vocab; }),
      "token_id",
      "token id outside the vocabulary");
}

Prologue parse_prologue(
    std::span<const std::byte> head,
    uint64_t file_bytes,
    const Expectation& expect) {
  check(head.size() >= kMagic.size(), "short", "file shorter than its magic");
  std::string_view magic(reinterpret_cast<const char*>(head.data()), 8);
  if (magic == kOldMagic) {
    reject("old_version", "magic", "format QWMTKV01, expected QWMTKV02");
  }
  if (magic != kMagic) {
    reject("foreign", "magic", "not a QWMTKV02 file");
  }
  check(head.size() >= kPrologueBytes, "short", "file ends in its prologue");

  ByteReader in(head.subspan(kMagic.size()));
  Prologue p{};
  auto major = in.take<uint16_t>();
  auto minor = in.take<uint16_t>();
  auto n_bytes = in.take<uint32_t>();
  if (major == 2 && minor != 0) {
    reject(
        "old_version",
        "minor",
        "layout minor " + std::to_string(minor) + ", expected 0");
  }
  check(
      major == 2 && n_bytes == kPrologueBytes,
      "prologue",
      "layout major or prologue size is wrong");
  take_sizes(in, p, file_bytes);
  take_lengths(in, p, expect.max_context);
  in.fill(p.head.writer_id);
  in.fill(p.header_digest);
  check(all_zero(in.bytes(32)), "prologue", "reserved bytes are not zero");

  if (expect.identity && *expect.identity != p.head.identity) {
    reject(
        "incompatible",
        "identity",
        "state of another model or configuration");
  }
  if (expect.owner && *expect.owner != p.head.owner) {
    reject("incompatible", "owner", "state of another session");
  }
  return p;
}

Header parse_header(
    std::span<const std::byte> data,
    const Prologue& prologue,
    const Expectation& expect) {
  check(
      header_digest(data) == prologue.header_digest,
      "header_digest",
      "header does not match its digest");
  const Sections sections = take_directory(data);
  Header h{};
  h.head = prologue.head;
  h.file_bytes = prologue.file_bytes;
  h.header_bytes = prologue.header_bytes;
  take_tokens(sections, prologue, h.head);

  const StateShape& shape = h.head.shape;
  const Geometry geometry =
      expect.geometry
          ? *expect.geometry
          : implied_geometry(sections[kTens], shape, prologue.file_bytes);
  check_ids(h.head.ids, geometry.vocab);
  auto specs = schema(geometry, shape);
  auto layout = checkpoint_layout(specs, shape, 0);
  check(
      specs.size() == prologue.n_tensors &&
          sections[kCrcs].size() == 4 * uint64_t{layout.n_crcs},
      "tensor_count",
      std::to_string(prologue.n_tensors) + " tensors, expected " +
          std::to_string(specs.size()));
  ByteReader sums(sections[kCrcs]);
  h.crcs.resize(layout.n_crcs);
  for (uint32_t& crc : h.crcs) {
    crc = sums.take<uint32_t>();
  }
  take_extents(sections[kTens], prologue.flags, std::move(layout), h);
  check_boundary_records(sections[kBnds], h);

  uint64_t n_payload = 0;
  for (const Extent& e : h.extents) {
    n_payload += e.n_bytes;
  }
  if (n_payload > expect.max_payload) {
    reject(
        "busy",
        "memory_budget",
        std::to_string(n_payload) + " bytes of state, budget " +
            std::to_string(expect.max_payload));
  }
  return h;
}

} // namespace qwenmtp::state
