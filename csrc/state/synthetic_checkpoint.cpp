#include "state/synthetic_checkpoint.h"

#include <cstring>

#include "base/crc32.h"

namespace qwenmtp::state {
namespace {

Geometry released_geometry() {
  Geometry g;
  for (int i = 0; i < 48; ++i) {
    g.layers.push_back(
        i % 4 == 3 ? LayerKind::qsa
        : i == 1   ? LayerKind::ple
                   : LayerKind::gdn);
  }
  g.vocab = 248320;
  g.wide = 10240;
  g.conv_dim = 10240;
  g.hv = 48;
  g.dv = 128;
  g.dk = 128;
  g.hkv = 2;
  g.head_dim = 256;
  g.index_dim = 128;
  return g;
}

/** Bytes without structure, by a multiplicative generator (Lehmer's). */
void fill(std::byte* to, uint64_t n, uint64_t seed) {
  uint64_t x = 2 * seed + 1;
  for (uint64_t at = 0; at < n; at += sizeof x) {
    x *= 0xda942042e4dd58b5;
    const uint64_t y = x >> 7;
    std::memcpy(to + at, &y, std::min<uint64_t>(sizeof y, n - at));
  }
}

} // namespace

SyntheticCheckpoint::SyntheticCheckpoint(uint64_t n_tokens) {
  head_.shape = {n_tokens, n_tokens - 1, Mode::mtp, {}};
  head_.ids.assign(n_tokens, 1);
  for (const auto& spec : schema(released_geometry(), head_.shape)) {
    const uint64_t n = spec.n_bytes();
    auto& data =
        tensors_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(n));
    fill(data.get(), n, tensors_.size());
    sources_.push_back({data.get(), n, n});
    n_payload_ += n;
  }
}

uint64_t SyntheticCheckpoint::write(int dir_fd, const std::string& name) const {
  return write_checkpoint(dir_fd, name, head_, released_geometry(), sources_);
}

void SyntheticCheckpoint::read(int dir_fd, const std::string& name) {
  CheckpointFile file(dir_fd, name);
  Expectation expect;
  expect.geometry = released_geometry();
  const Header header = file.header(expect);
  std::vector<std::unique_ptr<std::byte[]>> tensors(header.extents.size());
  file.read(header, [&](size_t i) -> Destination {
    const uint64_t n = header.extents[i].n_bytes;
    tensors[i] = std::make_unique_for_overwrite<std::byte[]>(n);
    return {tensors[i].get(), n, n};
  });
}

uint32_t SyntheticCheckpoint::crc() const {
  uint32_t crc = 0;
  for (const Source& s : sources_) {
    crc = base::crc32(crc, {s.data, s.run_bytes});
  }
  return crc;
}

Digest SyntheticCheckpoint::header_hash() const {
  const auto layout = checkpoint_layout(
      schema(released_geometry(), head_.shape),
      head_.shape,
      0);
  return base::sha256(std::vector<std::byte>(layout.header_bytes));
}

} // namespace qwenmtp::state
