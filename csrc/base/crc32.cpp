#include "base/crc32.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define QWENMTP_CRC_PCLMUL 1
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define QWENMTP_CRC_ARM 1
#endif

namespace qwenmtp::base {
namespace {

constexpr uint32_t kPoly = 0xEDB88320; // bit-reflected zlib polynomial

/** table[k][b]: remainder of byte b followed by k zero bytes. */
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> table{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t r = b;
    for (int i = 0; i < 8; ++i) {
      r = (r >> 1) ^ (r & 1 ? kPoly : 0);
    }
    table[0][b] = r;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t b = 0; b < 256; ++b) {
      uint32_t r = table[k - 1][b];
      table[k][b] = (r >> 8) ^ table[0][r & 0xFF];
    }
  }
  return table;
}();

uint64_t load64(const std::byte* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

/** state is the inverted CRC; eight bytes a step. */
uint32_t by_tables(uint32_t state, const std::byte* p, size_t n) {
  static_assert(std::endian::native == std::endian::little);
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t v = load64(p) ^ state;
    state = 0;
    for (size_t k = 0; k < 8; ++k) {
      state ^= kTables[7 - k][(v >> (8 * k)) & 0xFF];
    }
  }
  for (; n > 0; ++p, --n) {
    state =
        (state >> 8) ^ kTables[0][(state ^ static_cast<uint32_t>(*p)) & 0xFF];
  }
  return state;
}

#if defined(QWENMTP_CRC_PCLMUL)

/** x^n mod P, bit-reflected and shifted by one: the factor that moves a 64-bit
 *  half n bits up the message in a carry-less product. */
constexpr int64_t fold_factor(int n) {
  uint32_t r = 0x80000000; // x^0
  for (int i = 0; i < n; ++i) {
    r = (r >> 1) ^ (r & 1 ? kPoly : 0);
  }
  return static_cast<int64_t>(uint64_t{r} << 1);
}

__m128i block(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

__attribute__((target("pclmul,sse2"))) __m128i
fold(__m128i x, __m128i factors, __m128i data) {
  __m128i low = _mm_clmulepi64_si128(x, factors, 0x00);
  __m128i high = _mm_clmulepi64_si128(x, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

/** Folds whole 16-byte blocks (n >= 64) into the last one, four at a time;
 *  that block has the message's remainder and goes through the tables.
 *  Law: Gopal et al., Fast CRC Computation Using PCLMULQDQ, Intel 2009. */
__attribute__((target("pclmul,sse2"))) uint32_t
by_pclmul(uint32_t state, const std::byte* p, size_t n) {
  const __m128i by512 =
      _mm_set_epi64x(fold_factor(512 - 32), fold_factor(512 + 32));
  const __m128i by128 =
      _mm_set_epi64x(fold_factor(128 - 32), fold_factor(128 + 32));
  __m128i x[4];
  for (int i = 0; i < 4; ++i) {
    x[i] = block(p + 16 * i);
  }
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
    for (int i = 0; i < 4; ++i) {
      x[i] = fold(x[i], by512, block(p + 16 * i));
    }
  }
  for (int i = 1; i < 4; ++i) {
    x[0] = fold(x[0], by128, x[i]);
  }
  for (; n >= 16; p += 16, n -= 16) {
    x[0] = fold(x[0], by128, block(p));
  }
  std::byte last[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(last), x[0]);
  return by_tables(by_tables(0, last, 16), p, n);
}

bool has_pclmul() {
  static const bool has = __builtin_cpu_supports("pclmul");
  return has;
}

#elif defined(QWENMTP_CRC_ARM)

uint32_t by_arm(uint32_t state, const std::byte* p, size_t n) {
  for (; n >= 8; p += 8, n -= 8) {
    state = __crc32d(state, load64(p));
  }
  for (; n > 0; ++p, --n) {
    state = __crc32b(state, static_cast<uint8_t>(*p));
  }
  return state;
}

#endif

} // namespace

uint32_t crc32_tables(uint32_t crc, std::span<const std::byte> data) {
  return ~by_tables(~crc, data.data(), data.size());
}

uint32_t crc32(uint32_t crc, std::span<const std::byte> data) {
#if defined(QWENMTP_CRC_PCLMUL)
  if (data.size() >= 64 && has_pclmul()) {
    return ~by_pclmul(~crc, data.data(), data.size());
  }
#elif defined(QWENMTP_CRC_ARM)
  return ~by_arm(~crc, data.data(), data.size());
#endif
  return crc32_tables(crc, data);
}

const char* crc32_path() {
#if defined(QWENMTP_CRC_PCLMUL)
  return has_pclmul() ? "pclmul" : "tables";
#elif defined(QWENMTP_CRC_ARM)
  return "arm_crc32";
#else
  return "tables";
#endif
}

} // namespace qwenmtp::base
