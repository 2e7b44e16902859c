/** 128-bit words as Python integers. */
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace qwenmtp::testing {

inline nanobind::object to_int(unsigned __int128 value) {
  namespace nb = nanobind;
  const nb::int_ high(static_cast<uint64_t>(value >> 64));
  const nb::int_ low(static_cast<uint64_t>(value));
  return (high << nb::int_(64)) | low;
}

} // namespace qwenmtp::testing
