/** CRC-32 with the zlib polynomial, by the processor's instructions where it
 *  has them (ARMv8 CRC32, x86 PCLMULQDQ), else by tables. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace qwenmtp::base {

/** Extends crc (0 for an empty prefix) by data; the same value as zlib's. */
uint32_t crc32(uint32_t crc, std::span<const std::byte> data);

/** The table path alone, for machines without the instructions. */
uint32_t crc32_tables(uint32_t crc, std::span<const std::byte> data);

/** "arm_crc32", "pclmul" or "tables": what crc32 uses here. */
const char* crc32_path();

} // namespace qwenmtp::base
