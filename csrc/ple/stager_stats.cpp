#include "ple/stager_stats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

namespace qwenmtp::ple {
namespace {

using Words = std::array<uint64_t, sizeof(StagerStats) / sizeof(uint64_t)>;

template <typename Op>
StagerStats by_word(const StagerStats& a, const StagerStats& b, Op op) {
  auto words = std::bit_cast<Words>(a);
  const auto other = std::bit_cast<Words>(b);
  std::ranges::transform(words, other, words.begin(), op);
  return std::bit_cast<StagerStats>(words);
}

} // namespace

StagerStats& StagerStats::operator+=(const StagerStats& other) {
  return *this = by_word(*this, other, std::plus{});
}

StagerStats StagerStats::operator-(const StagerStats& other) const {
  return by_word(*this, other, std::minus{});
}

} // namespace qwenmtp::ple
