#include "base/sha256.h"

#include <algorithm>
#include <bit>

namespace qwenmtp::base {
namespace {

// First 32 bits of the fractional parts of the cube roots of the first primes.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

uint32_t load_be(const std::byte* p) {
  return static_cast<uint32_t>(p[0]) << 24 | static_cast<uint32_t>(p[1]) << 16 |
         static_cast<uint32_t>(p[2]) << 8 | static_cast<uint32_t>(p[3]);
}

} // namespace

void Sha256::block(const std::byte* p) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = load_be(p + 4 * i);
  }
  for (size_t i = 16; i < 64; ++i) {
    uint32_t a = w[i - 15];
    uint32_t b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] +
           (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = h_;
  for (size_t i = 0; i < 64; ++i) {
    uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) {
    h_[i] += add[i];
  }
}

void Sha256::update(std::span<const std::byte> data) {
  size_t held = n_bytes_ % 64;
  n_bytes_ += data.size();
  if (held > 0) {
    size_t n = std::min(64 - held, data.size());
    std::copy_n(data.begin(), n, tail_.begin() + held);
    data = data.subspan(n);
    if (held + n < 64) {
      return;
    }
    block(tail_.data());
  }
  for (; data.size() >= 64; data = data.subspan(64)) {
    block(data.data());
  }
  std::copy(data.begin(), data.end(), tail_.begin());
}

Digest Sha256::finish() {
  uint64_t n_bits = 8 * n_bytes_;
  std::array<std::byte, 72> pad{};
  pad[0] = std::byte{0x80};
  size_t n_pad = 1 + (119 - n_bytes_ % 64) % 64;
  for (size_t i = 0; i < 8; ++i) {
    pad[n_pad + i] = static_cast<std::byte>(n_bits >> (56 - 8 * i));
  }
  update({pad.data(), n_pad + 8});
  Digest out;
  for (size_t i = 0; i < 32; ++i) {
    out[i] = static_cast<uint8_t>(h_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return out;
}

Digest sha256(std::span<const std::byte> data) {
  Sha256 hash;
  hash.update(data);
  return hash.finish();
}

} // namespace qwenmtp::base
