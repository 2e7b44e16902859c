/** SHA-256 (FIPS 180-4), for headers and digests of a few MiB. */
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace qwenmtp::base {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void update(std::span<const std::byte> data);

  /** The digest of everything so far; the object is spent afterwards. */
  Digest finish();

 private:
  void block(const std::byte* p);

  std::array<uint32_t, 8> h_ = {
      0x6a09e667,
      0xbb67ae85,
      0x3c6ef372,
      0xa54ff53a,
      0x510e527f,
      0x9b05688c,
      0x1f83d9ab,
      0x5be0cd19};
  std::array<std::byte, 64> tail_{};
  uint64_t n_bytes_ = 0;
};

Digest sha256(std::span<const std::byte> data);

} // namespace qwenmtp::base
