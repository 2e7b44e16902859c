/** The state of a conversation and the decoder that moves it on. */
#include "bindings/bindings.h"

#include <algorithm>

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"
#include "bindings/decoder_steps.h"
#include "bindings/model_values.h"
#include "decode/launches.h"
#include "decode/model_network.h"
#include "decode/null_network.h"
#include "decode/state_decoder.h"
#include "decode/traffic.h"

namespace nb = nanobind;

namespace qwenmtp::bindings {

namespace {

using decode::StateDecoder;
using state::ModelState;

using Rows = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

mlx::core::array to_rows(const Rows& rows) {
  const mlx::core::Shape shape{
      static_cast<int>(rows.shape(0)),
      static_cast<int>(rows.shape(1))};
  if (rows.dtype() == nb::dtype<float>()) {
    return mlx::core::array(
        static_cast<const float*>(rows.data()),
        shape,
        mlx::core::float32);
  }
  if (rows.dtype() != nb::dtype<uint16_t>()) {
    throw InvalidArgument(
        "[decode.rows] expected float32, or bfloat16 as uint16");
  }
  const mlx::core::array bits(
      static_cast<const uint16_t*>(rows.data()),
      shape,
      mlx::core::uint16);
  return mlx::core::view(bits, mlx::core::bfloat16);
}

using NamedTensor =
    std::tuple<std::string, std::string, std::vector<int>, nb::bytes>;

/** Copies: logical rows, row after row. */
std::vector<NamedTensor> named_tensors(const ModelState& s) {
  std::vector<NamedTensor> out;
  for (const auto& [name, value] : state::tensors(s)) {
    const auto flat = mlx::core::contiguous(value);
    unlocked([&] { mlx::core::eval(flat); });
    const auto dtype = flat.dtype();
    out.emplace_back(
        name,
        dtype == mlx::core::float32    ? "float32"
        : dtype == mlx::core::bfloat16 ? "bfloat16"
                                       : "int64",
        std::vector<int>(flat.shape().begin(), flat.shape().end()),
        nb::bytes(flat.data<char>(), flat.nbytes()));
  }
  return out;
}

class NullDecoder {
 public:
  NullDecoder(
      const Rows& rows,
      std::vector<int32_t> prompt,
      const nb::dict& options)
      : network_(to_rows(rows)),
        decoder_(network_, to_options(options), std::move(prompt)) {
  }

  decode::Decoder& decoder() {
    return decoder_;
  }

 private:
  decode::NullNetwork network_;
  decode::Decoder decoder_;
};

} // namespace

void register_decode(nb::module_& m) {
  nb::class_<ModelState>(
      m,
      "State",
      "What a model remembers of one sequence of ids.")
      .def(
          "__init__",
          [](ModelState* self, const model::Model& model, bool speculate) {
            new (self) ModelState(decode::initial_state(model, speculate));
          },
          nb::arg("model"),
          nb::arg("speculate"),
          "Empty; with an MTP history if it will speculate.")
      .def_prop_ro(
          "ids",
          [](const ModelState& s) { return s.ids; },
          "Every id the state holds.")
      .def("__len__", [](const ModelState& s) { return s.len(); })
      .def_prop_ro(
          "history_len",
          [](const ModelState& s) { return s.mtp ? s.mtp->len() : 0; },
          "Rows of the MTP history.")
      .def_prop_ro(
          "speculates",
          [](const ModelState& s) { return s.mtp.has_value(); },
          "Whether it has an MTP history.")
      .def(
          "fork",
          [](const ModelState& s) { return ModelState(s); },
          "A copy; shares its arrays until one of both moves on.")
      .def_prop_ro(
          "boundaries",
          [](const ModelState& s) {
            std::vector<int> out;
            for (const auto& b : s.boundaries) {
              out.push_back(b.len);
            }
            return out;
          },
          "Lengths that rewind() can go back to, ascending.")
      .def(
          "keep_boundaries",
          [](ModelState& s, const std::vector<int>& lengths) {
            std::erase_if(s.boundaries, [&](const state::Boundary& b) {
              return std::ranges::find(lengths, b.len) == lengths.end();
            });
          },
          nb::arg("lengths"),
          "Forgets all others.")
      .def(
          "rewind",
          [](ModelState& s, int len) {
            const auto at =
                std::ranges::find(s.boundaries, len, &state::Boundary::len);
            if (at == s.boundaries.end()) {
              throw InvalidArgument(
                  "[state.rewind] no boundary at " + std::to_string(len));
            }
            state::rewind(s, state::Boundary(*at));
          },
          nb::arg("length"),
          "Back to a boundary: no logits, hidden row where there is a history.")
      .def_prop_ro(
          "n_bytes",
          [](const ModelState& s) { return state::held_bytes(s); },
          "Of all buffers it holds, boundaries and spare rows included.")
      .def(
          "check",
          [](const ModelState& s) { state::check_invariants(s); },
          "Raises for a broken invariant.")
      .def(
          "first_difference",
          [](const ModelState& a, const ModelState& b) {
            return unlocked([&] { return state::first_difference(a, b); });
          },
          nb::arg("other"),
          "The first differing value, or None when all bits are equal.")
      .def(
          "tensors",
          &named_tensors,
          "(name, dtype, shape, bytes) of every tensor, in the order of a "
          "checkpoint.");

  m.def(
      "traffic",
      [](const model::Model& model,
         const ModelState& state,
         const std::vector<int32_t>& ids,
         bool draft) {
        const auto found =
            unlocked([&] { return decode::traffic(model, state, ids, draft); });
        std::map<std::string, std::pair<int64_t, int64_t>> out;
        for (const auto& [name, t] : found) {
          out[name] = {t.nodes, t.bytes};
        }
        return out;
      },
      nb::arg("model"),
      nb::arg("state"),
      nb::arg("ids"),
      nb::arg("draft") = false,
      "Nodes and bytes moved by node name, of a forward of ids behind a state, "
      "which stays as it is; with draft of the head's draft behind it.");

  m.def(
      "launches",
      [](const nb::dict& geometry,
         std::vector<std::string> files,
         const std::vector<TensorRow>& tensors,
         std::pair<int, int> width,
         int depth) {
        const auto config = to_config(geometry);
        auto weights =
            to_weights_without_values(std::move(files), tensors, width);
        return unlocked([&] {
          const model::Model model(config, std::move(weights));
          return decode::launches(model, depth);
        });
      },
      nb::arg("geometry"),
      nb::arg("files"),
      nb::arg("tensors"),
      nb::arg("width"),
      nb::arg("depth"),
      "An accelerator's launches by step and node name, for a pack of this "
      "geometry without its weights; tensors: of its n-gram table, and one of "
      "the draft head.");

  nb::class_<StateDecoder> decoder(
      m,
      "Decoder",
      "One request: pull prefill, then steps, then finish.");
  decoder.def(
      "__init__",
      [](StateDecoder* self,
         const model::Model& model,
         ModelState& state,
         std::vector<int32_t> prompt,
         const nb::dict& options) {
        new (self) StateDecoder(
            std::make_unique<decode::ModelNetwork>(model, state),
            state,
            std::move(prompt),
            to_options(options));
      },
      nb::arg("model"),
      nb::arg("state"),
      nb::arg("prompt"),
      nb::arg("options"),
      nb::keep_alive<1, 2>(),
      nb::keep_alive<1, 3>(),
      "prompt: every id of the context; the state holds a prefix of it.");
  register_steps(decoder);
  register_state(decoder);

  nb::class_<NullDecoder> null(
      m,
      "NullDecoder",
      "A request without a model, for benchmarks.");
  null.def(
      nb::init<const Rows&, std::vector<int32_t>, const nb::dict&>(),
      nb::arg("rows"),
      nb::arg("prompt"),
      nb::arg("options"),
      "rows [n, V]: logits in turn; float32, or uint16 holding bfloat16.");
  register_steps(null);
}

} // namespace qwenmtp::bindings
