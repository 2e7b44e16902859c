/** Checkpoint files: without a model for the store and the command line, and
 *  states in and out of them. */
#include "bindings/checkpoint.h"

#include <atomic>

#include "base/crc32.h"
#include "base/publish.h"
#include "bindings/bindings.h"
#include "decode/model_network.h"
#include "state/checkpoint_image.h"
#include "state/checkpoint_restore.h"
#include "state/synthetic_checkpoint.h"

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

/** Set from any thread; looked at between pieces of a file. */
struct CancelFlag {
  std::atomic<bool> set{false};
};

const std::atomic<bool>* flag_of(const CancelFlag* cancel) {
  return cancel == nullptr ? nullptr : &cancel->set;
}

state::Finish finish_from(const std::string& name) {
  for (auto f :
       {state::Finish::stop,
        state::Finish::length,
        state::Finish::tool_calls}) {
    if (name == finish_name(f)) {
      return f;
    }
  }
  throw InvalidArgument(
      "[checkpoint.image] finish " + name +
      ", expected stop, length or tool_calls");
}

base::Durability durability_from(const std::string& name) {
  return name == "none"   ? base::Durability::none
         : name == "full" ? base::Durability::full
                          : base::Durability::barrier;
}

state::Geometry geometry_of(
    const model::Model& model,
    const state::ModelState& empty) {
  const auto& c = model.config();
  return state::geometry_of(empty, c.vocab_size, c.wide(), model.dtype());
}

state::ModelState load_state(
    const model::Model& model,
    const CheckpointFile& file,
    const std::optional<nb::bytes>& identity,
    const std::optional<nb::bytes>& owner,
    uint64_t max_context,
    uint64_t max_payload,
    int spare_rows,
    std::optional<size_t> boundary,
    const CancelFlag* cancel) {
  Expectation expect = expectation(identity, owner);
  expect.max_context = max_context;
  expect.max_payload = max_payload;
  nb::gil_scoped_release unlocked;
  const bool mtp = file.prologue(expect).head.shape.mode == state::Mode::mtp;
  auto empty = decode::initial_state(model, mtp);
  expect.geometry = geometry_of(model, empty);
  return state::read_state(
      file,
      file.header(expect),
      std::move(empty),
      spare_rows,
      boundary,
      flag_of(cancel));
}

void register_states(nb::module_& m) {
  nb::class_<CancelFlag>(m, "CancelFlag")
      .def(nb::init<>())
      .def("set", [](CancelFlag& self) { self.set = true; });

  nb::class_<state::StateImage>(
      m,
      "StateImage",
      "A state at one moment, ready to be written.")
      .def(
          "__init__",
          [](state::StateImage* self,
             const model::Model& model,
             const state::ModelState& state,
             const std::string& finish,
             std::string meta) {
            auto f = finish_from(finish);
            nb::gil_scoped_release unlocked;
            new (self) state::StateImage(
                state,
                geometry_of(model, state),
                f,
                std::move(meta));
          },
          "model"_a,
          "state"_a,
          "finish"_a,
          "meta"_a,
          "With all boundaries of the state; meta: JSON.")
      .def_prop_ro("n_tokens", &state::StateImage::n_tokens)
      .def_prop_ro("file_bytes", &state::StateImage::n_bytes)
      .def(
          "write",
          [](const state::StateImage& self,
             int dir_fd,
             const std::string& name,
             const nb::bytes& identity,
             const nb::bytes& owner,
             const std::string& durability,
             const CancelFlag* cancel) {
            auto id = from_bytes<state::Digest>(identity);
            auto key = from_bytes<state::Digest>(owner);
            state::WriteOptions options;
            options.durability = durability_from(durability);
            options.cancel = flag_of(cancel);
            nb::gil_scoped_release unlocked;
            self.write(dir_fd, name, id, key, options);
          },
          "dir_fd"_a,
          "name"_a,
          "identity"_a,
          "owner"_a,
          "durability"_a = "barrier",
          "cancel"_a = nb::none(),
          "From any thread; the session may go on meanwhile.");

  m.def(
      "load_state",
      &load_state,
      "model"_a,
      "file"_a,
      "identity"_a = nb::none(),
      "owner"_a = nb::none(),
      nb::kw_only(),
      "max_context"_a = Expectation{}.max_context,
      "max_payload"_a = Expectation{}.max_payload,
      "spare_rows"_a = 0,
      "boundary"_a = nb::none(),
      "cancel"_a = nb::none(),
      "A State of the file's mode; with boundary the one at that record.");
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

  register_states(m);

  using state::SyntheticCheckpoint;
  using unlocked = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<SyntheticCheckpoint>(
      m,
      "SyntheticCheckpoint",
      "A state of the released geometry made of random bytes, for benchmarks.")
      .def(nb::init<uint64_t>(), "n_tokens"_a, unlocked())
      .def_prop_ro("payload_bytes", &SyntheticCheckpoint::payload_bytes)
      .def_prop_ro_static(
          "crc_path",
          [](nb::handle) { return base::crc32_path(); })
      .def(
          "write",
          &SyntheticCheckpoint::write,
          "dir_fd"_a,
          "name"_a,
          unlocked())
      .def_static(
          "read",
          &SyntheticCheckpoint::read,
          "dir_fd"_a,
          "name"_a,
          unlocked(),
          "Into fresh memory, checked and freed.")
      .def("crc", &SyntheticCheckpoint::crc, unlocked())
      .def("header_hash", [](const SyntheticCheckpoint& self) {
        return to_bytes(self.header_hash());
      });

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
