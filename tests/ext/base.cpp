/** Room base under test: checksums of bytes. */
#include <nanobind/nanobind.h>

#include "base/crc32.h"
#include "base/sha256.h"
#include "bindings/checkpoint.h"
#include "testing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qwenmtp::testing {
namespace {

std::span<const std::byte> view(const nb::bytes& data) {
  return {static_cast<const std::byte*>(data.data()), data.size()};
}

} // namespace

void register_base(nb::module_& m) {
  m.def(
      "crc32",
      [](const nb::bytes& data, uint32_t crc) {
        return base::crc32(crc, view(data));
      },
      "data"_a,
      "crc"_a = 0);
  m.def(
      "crc32_tables",
      [](const nb::bytes& data, uint32_t crc) {
        return base::crc32_tables(crc, view(data));
      },
      "data"_a,
      "crc"_a = 0);
  m.def("crc32_path", &base::crc32_path);
  m.def(
      "sha256",
      [](const nb::bytes& data, size_t step) {
        base::Sha256 hash;
        for (auto rest = view(data); !rest.empty();) {
          auto head = rest.first(std::min(step, rest.size()));
          hash.update(head);
          rest = rest.subspan(head.size());
        }
        return bindings::to_bytes(hash.finish());
      },
      "data"_a,
      "step"_a,
      "Digest of data fed step bytes at a time.");
}

} // namespace qwenmtp::testing
