/** NumPy's default generator: PCG64 (XSL-RR 128/64) seeded by SeedSequence.
 *  Owns one stream; there is no global generator. */
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace qwenmtp::sampling {

class Pcg64 {
 public:
  using Word128 = unsigned __int128;

  /** seed: a non-negative integer of any size as 32-bit words, least
   *  significant first; no words, or leading zeros, are allowed. */
  explicit Pcg64(std::span<const uint32_t> seed);
  explicit Pcg64(uint64_t seed);

  uint64_t next();

  /** One double of [0, 1), 53 bits. */
  double uniform();

  Word128 state() const {
    return state_;
  }
  Word128 inc() const {
    return inc_;
  }

 private:
  Word128 state_ = 0;
  Word128 inc_;
};

} // namespace qwenmtp::sampling
