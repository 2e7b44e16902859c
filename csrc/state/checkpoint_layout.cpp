#include "state/checkpoint_layout.h"

#include "base/error.h"
#include "state/checkpoint_format.h"

namespace qwenmtp::state {
namespace {

using base::ByteWriter;

uint64_t round_up(uint64_t n, uint64_t step) {
  return (n + step - 1) / step * step;
}

/** The same rules as the reader's, as the caller's fault. */
void check_lawful(
    const CheckpointHead& head,
    const CheckpointLayout& layout,
    uint32_t vocab) {
  try {
    check_shape(head, kMaxHeader / 4);
    check_boundaries(head.shape);
    check_ids(head.ids, vocab);
    check(head.ids.size() == head.shape.n_tokens, "ids", "not one id a token");
    check(head.meta.size() <= kMaxMeta, "meta", "META over 64 KiB");
    check(
        layout.header_bytes <= kMaxHeader && layout.file_bytes <= kMaxFile &&
            layout.extents.size() <= kMaxTensors &&
            head.shape.boundaries.size() <= kMaxBoundaries,
        "size",
        "state larger than the format allows");
  } catch (const CheckpointError& e) {
    throw InvalidArgument(std::string("[checkpoint.write] ") + e.what());
  }
}

void put_prologue(
    std::span<std::byte> to,
    const CheckpointHead& head,
    const CheckpointLayout& layout,
    bool hashes) {
  const StateShape& shape = head.shape;
  ByteWriter out(to);
  out.copy(std::as_bytes(std::span(kMagic)));
  out.put(uint16_t{2});
  out.put(uint16_t{0});
  out.put(static_cast<uint32_t>(kPrologueBytes));
  out.put(layout.file_bytes);
  out.put(layout.header_bytes);
  out.put(layout.file_bytes - layout.header_bytes);
  out.put(
      (shape.mode == Mode::mtp ? kFlagMtp : 0) |
      (shape.boundaries.empty() ? 0 : kFlagBoundaries) |
      (hashes ? kFlagHashes : 0));
  out.put(static_cast<uint32_t>(kTags.size()));
  out.put(head.created_ns);
  out.put(shape.n_tokens);
  out.copy(head.identity);
  out.copy(head.owner);
  out.put(shape.n_tokens);
  out.put(shape.n_tokens);
  out.put(shape.history_len);
  out.put(head.position_base);
  out.put(static_cast<uint32_t>(layout.extents.size()));
  out.put(static_cast<uint32_t>(shape.boundaries.size()));
  out.put(static_cast<uint32_t>(head.finish));
  out.put(static_cast<uint32_t>(shape.mode));
  out.copy(head.writer_id);
}

void put_directory(std::span<std::byte> to, const CheckpointLayout& layout) {
  ByteWriter out(to);
  for (size_t i = 0; i < kTags.size(); ++i) {
    out.copy(std::as_bytes(std::span(kTags[i])));
    out.put(uint16_t{1});
    out.put(kCritical);
    out.put(layout.section_offset[i]);
    out.put(layout.section_bytes[i]);
    out.put(uint64_t{0});
  }
}

} // namespace

std::vector<BoundaryRange> boundary_ranges(
    std::span<const Extent> extents,
    size_t n_boundaries) {
  std::vector<BoundaryRange> ranges(n_boundaries);
  for (size_t i = 0; i < extents.size(); ++i) {
    const TensorSpec& spec = extents[i].spec;
    if (spec.group != Group::boundary) {
      continue;
    }
    auto& range = ranges[spec.boundary];
    if (range.count++ == 0) {
      range.first = static_cast<uint32_t>(i);
    }
    if (spec.role == Role::hidden) {
      range.hidden = static_cast<int32_t>(i);
    }
  }
  return ranges;
}

Digest header_digest(std::span<const std::byte> header) {
  constexpr std::array<std::byte, 32> zeros{};
  base::Sha256 hash;
  hash.update(header.first(kDigestAt));
  hash.update(zeros);
  hash.update(header.subspan(kDigestAt + zeros.size()));
  return hash.finish();
}

void put_record(ByteWriter& out, const Extent& e, const Digest& hash) {
  const TensorSpec& s = e.spec;
  out.put(static_cast<uint8_t>(s.group));
  out.put(static_cast<uint8_t>(s.role));
  out.put(s.layer);
  out.put(s.boundary);
  out.put(static_cast<uint8_t>(s.dtype));
  out.put(s.rank);
  for (uint32_t d : s.dims) {
    out.put(d);
  }
  out.put(e.offset);
  out.put(e.n_bytes);
  out.put(e.first_crc);
  out.put(e.n_crcs);
  out.put(s.rows);
  out.copy(hash);
  out.put(uint64_t{0});
}

CheckpointLayout checkpoint_layout(
    std::span<const TensorSpec> specs,
    const StateShape& shape,
    uint64_t meta_bytes) {
  CheckpointLayout out;
  for (const TensorSpec& spec : specs) {
    uint64_t n_bytes = spec.n_bytes();
    auto n_crcs = static_cast<uint32_t>((n_bytes + kPiece - 1) / kPiece);
    out.extents.push_back({spec, 0, n_bytes, out.n_crcs, n_crcs});
    out.n_crcs += n_crcs;
  }
  out.section_bytes = {
      meta_bytes,
      4 * shape.n_tokens,
      kTensorBytes * specs.size(),
      4 * uint64_t{out.n_crcs},
      kBoundaryBytes * shape.boundaries.size()};
  uint64_t end = kPrologueBytes + kDirEntryBytes * kTags.size();
  for (size_t i = 0; i < kTags.size(); ++i) {
    out.section_offset[i] = round_up(end, 64);
    end = out.section_offset[i] + out.section_bytes[i];
  }
  out.header_bytes = round_up(end, kPage);
  end = out.header_bytes;
  for (Extent& e : out.extents) {
    e.offset = end;
    end = round_up(end + e.n_bytes, kPage);
  }
  out.file_bytes = end;
  return out;
}

std::vector<std::byte> encode_header(
    const CheckpointHead& head,
    const CheckpointLayout& layout,
    uint32_t vocab,
    std::span<const uint32_t> crcs,
    std::span<const Digest> hashes) {
  const StateShape& shape = head.shape;
  check_lawful(head, layout, vocab);
  std::vector<std::byte> data(layout.header_bytes);
  std::span<std::byte> all(data);
  put_prologue(all.first(kPrologueBytes), head, layout, !hashes.empty());
  put_directory(all.subspan(kPrologueBytes), layout);

  auto section = [&](Section i) {
    return ByteWriter(
        all.subspan(layout.section_offset[i], layout.section_bytes[i]));
  };
  section(kMeta).copy(std::as_bytes(std::span(head.meta)));
  ByteWriter toks = section(kToks);
  for (uint32_t id : head.ids) {
    toks.put(id);
  }
  ByteWriter tens = section(kTens);
  for (size_t i = 0; i < layout.extents.size(); ++i) {
    put_record(tens, layout.extents[i], hashes.empty() ? Digest{} : hashes[i]);
  }
  ByteWriter sums = section(kCrcs);
  for (uint32_t crc : crcs) {
    sums.put(crc);
  }
  ByteWriter bounds = section(kBnds);
  auto ranges = boundary_ranges(layout.extents, shape.boundaries.size());
  for (size_t b = 0; b < ranges.size(); ++b) {
    bounds.put(shape.boundaries[b]);
    bounds.put(ranges[b].first);
    bounds.put(ranges[b].count);
    bounds.put(ranges[b].hidden);
    bounds.zeros(12);
  }

  Digest digest = header_digest(all);
  ByteWriter(all.subspan(kDigestAt)).copy(digest);
  return data;
}

} // namespace qwenmtp::state
