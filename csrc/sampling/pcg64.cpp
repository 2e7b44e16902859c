#include "sampling/pcg64.h"

#include <bit>

namespace qwenmtp::sampling {

namespace {

constexpr int kPool = 4;

/** SeedSequence's running hash: the constant moves with every value. */
struct Hash {
  uint32_t c;
  uint32_t mult;

  uint32_t operator()(uint32_t v) {
    v ^= c;
    c *= mult;
    v *= c;
    return v ^ (v >> 16);
  }
};

uint32_t mix(uint32_t x, uint32_t y) {
  uint32_t r = 0xCA01F9DDu * x - 0x4973F715u * y;
  return r ^ (r >> 16);
}

/** SeedSequence(seed).generate_state(4, uint64). */
std::array<uint64_t, 4> seed_state(std::span<const uint32_t> seed) {
  while (!seed.empty() && seed.back() == 0) {
    seed = seed.first(seed.size() - 1);
  }
  Hash hash{0x43B0D7E5u, 0x931E8875u};
  std::array<uint32_t, kPool> pool;
  for (size_t i = 0; i < kPool; i++) {
    pool[i] = hash(i < seed.size() ? seed[i] : 0);
  }
  for (int src = 0; src < kPool; src++) {
    for (int dst = 0; dst < kPool; dst++) {
      if (src != dst) {
        pool[dst] = mix(pool[dst], hash(pool[src]));
      }
    }
  }
  for (size_t i = kPool; i < seed.size(); i++) {
    for (uint32_t& word : pool) {
      word = mix(word, hash(seed[i]));
    }
  }
  Hash out{0x8B51F9DDu, 0x58F38DEDu};
  std::array<uint64_t, 4> state{};
  for (int i = 0; i < 8; i++) {
    state[i / 2] |= static_cast<uint64_t>(out(pool[i % kPool]))
                    << (32 * (i % 2));
  }
  return state;
}

constexpr Pcg64::Word128 kMultiplier =
    (static_cast<Pcg64::Word128>(0x2360ED051FC65DA4u) << 64) |
    0x4385DF649FCCF645u;

Pcg64::Word128 join(uint64_t high, uint64_t low) {
  return (static_cast<Pcg64::Word128>(high) << 64) | low;
}

} // namespace

Pcg64::Pcg64(std::span<const uint32_t> seed) {
  const auto v = seed_state(seed);
  inc_ = (join(v[2], v[3]) << 1) | 1;
  next();
  state_ += join(v[0], v[1]);
  next();
}

Pcg64::Pcg64(uint64_t seed)
    : Pcg64(std::array<uint32_t, 2>{
          static_cast<uint32_t>(seed),
          static_cast<uint32_t>(seed >> 32)}) {
}

uint64_t Pcg64::next() {
  state_ = state_ * kMultiplier + inc_;
  const auto high = static_cast<uint64_t>(state_ >> 64);
  const auto low = static_cast<uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

double Pcg64::uniform() {
  return static_cast<double>(next() >> 11) * 0x1p-53;
}

} // namespace qwenmtp::sampling
