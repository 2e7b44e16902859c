/** Checkpoint files without a model: what the store and the command line ask.
 */
#include "bindings/checkpoint.h"

#include "base/publish.h"
#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qwenmtp::bindings {
namespace {

using state::CheckpointFile;
using state::Expectation;
using state::Header;

Expectation expectation(
    const std::optional<nb::bytes>& identity,
    const std::optional<nb::bytes>& owner) {
  Expectation expect;
  expect.identity = digest_or_none(identity);
  expect.owner = digest_or_none(owner);
  return expect;
}

nb::bytes ids_bytes(const Header& h) {
  return nb::bytes(h.head.ids.data(), h.head.ids.size() * sizeof(uint32_t));
}

} // namespace

void register_checkpoint(nb::module_& m) {
  nb::class_<Header>(m, "CheckpointHeader")
      .def_prop_ro("ids", &ids_bytes, "N little-endian uint32.")
      .def_prop_ro(
          "boundaries",
          [](const Header& h) { return h.head.shape.boundaries; })
      .def_prop_ro(
          "meta",
          [](const Header& h) {
            return nb::bytes(h.head.meta.data(), h.head.meta.size());
          })
      .def_prop_ro(
          "tensors",
          [](const Header& h) {
            nb::list out;
            for (const auto& e : h.extents) {
              out.append(extent_tuple(e));
            }
            return out;
          },
          "One tuple a tensor: group, role, layer, boundary, dtype, shape, "
          "offset, bytes.");

  nb::class_<CheckpointFile>(m, "CheckpointFile")
      .def(nb::init<int, const std::string&>(), "dir_fd"_a, "name"_a)
      .def_prop_ro("inode", &CheckpointFile::inode)
      .def_prop_ro("n_bytes", &CheckpointFile::n_bytes)
      .def(
          "prologue",
          [](const CheckpointFile& self,
             const std::optional<nb::bytes>& identity,
             const std::optional<nb::bytes>& owner) {
            return prologue_dict(self.prologue(expectation(identity, owner)));
          },
          "identity"_a = nb::none(),
          "owner"_a = nb::none(),
          "Reads 256 bytes and checks them.")
      .def(
          "header",
          [](const CheckpointFile& self,
             const std::optional<nb::bytes>& identity,
             const std::optional<nb::bytes>& owner) {
            return self.header(expectation(identity, owner));
          },
          "identity"_a = nb::none(),
          "owner"_a = nb::none(),
          "Reads the header and checks it against the geometry it implies.")
      .def(
          "verify",
          [](const CheckpointFile& self, const Header& header) {
            nb::gil_scoped_release release;
            self.verify(header);
          },
          "header"_a,
          "Reads every tensor and checks CRCs, hashes and padding.");

  m.def(
      "checkpoint_allocated_bytes",
      &state::checkpoint_allocated_bytes,
      "Tensor bytes for which readers of this process asked for memory.");
  m.def(
      "is_local",
      &base::is_local,
      "fd"_a,
      "Whether an open file lies on a file system of this machine.");
}

} // namespace qwenmtp::bindings
