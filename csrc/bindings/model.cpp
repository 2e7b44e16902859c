/** model::Model for Python: built from parsed headers, described by numbers. */
#include "bindings/bindings.h"
#include "bindings/model_values.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "model/model.h"

namespace nb = nanobind;

namespace qwenmtp::bindings {

/** How far a load has come; read from another thread while it runs. */
struct LoadProgress {
  std::atomic<uint64_t> bytes = 0;
};

void register_model(nb::module_& m) {
  m.def(
      "device",
      [] {
        return mlx::core::default_device() == mlx::core::Device::cpu ? "cpu"
                                                                     : "gpu";
      },
      "Where MLX computes by default: cpu or gpu.");

  m.def(
      "set_memory_limit",
      [](size_t n_bytes) { mlx::core::set_memory_limit(n_bytes); },
      nb::arg("n_bytes"),
      "Bytes beyond which MLX waits for memory to be freed; of the process.");

  m.def(
      "ngram_tables",
      [](const nb::dict& geometry,
         const std::string& layout,
         std::vector<std::string> files,
         const std::vector<TensorRow>& tensors,
         const Widths& quant) {
        auto config = to_config(geometry);
        config.validate();
        auto weights =
            to_weights(layout, std::move(files), tensors, quant, false);
        std::vector<std::pair<ple::NgramConfig, ple::TableSpec>> out;
        for (auto& table : model::find_ngram_tables(weights, config)) {
          out.emplace_back(std::move(table.hash), std::move(table.spec));
        }
        return out;
      },
      nb::arg("geometry"),
      nb::arg("layout"),
      nb::arg("files"),
      nb::arg("tensors"),
      nb::arg("quant"),
      "(NgramConfig, PleTableSpec) of each n-gram layer of a checkpoint.");

  nb::class_<LoadProgress>(m, "LoadProgress", "Bytes that a load has read.")
      .def(nb::init<>())
      .def_prop_ro(
          "bytes",
          [](const LoadProgress& p) { return p.bytes.load(); },
          "So far.");

  nb::class_<model::Model>(
      m,
      "Model",
      "A loaded checkpoint; immutable, shared by its sessions.")
      .def(
          "__init__",
          [](model::Model* self,
             const nb::dict& geometry,
             const std::string& layout,
             std::vector<std::string> files,
             const std::vector<TensorRow>& tensors,
             const Widths& quant,
             bool float32,
             LoadProgress* progress,
             const ple::OpenOptions* ple) {
            auto options = ple ? *ple : ple::OpenOptions{};
            options.progress = [progress, seen = uint64_t{0}](
                                   uint64_t done,
                                   uint64_t) mutable {
              if (progress) {
                progress->bytes += done - std::min(seen, done);
              }
              seen = done;
            };
            auto config = to_config(geometry);
            auto weights = to_weights(
                layout,
                std::move(files),
                tensors,
                quant,
                float32,
                progress ? &progress->bytes : nullptr);
            nb::gil_scoped_release unlocked;
            new (self) model::Model(config, std::move(weights), options);
          },
          nb::arg("geometry"),
          nb::arg("layout"),
          nb::arg("files"),
          nb::arg("tensors"),
          nb::arg("quant"),
          nb::arg("float32"),
          nb::arg("progress") = nb::none(),
          nb::arg("ple") = nb::none(),
          "Read and check every tensor. Raises ModelFormatError, IoError.")
      .def_prop_ro(
          "has_mtp",
          [](const model::Model& self) { return self.mtp_head() != nullptr; },
          "Whether the checkpoint carries an MTP head.")
      .def(
          "expect",
          [](const model::Model& self,
             const std::vector<int32_t>& before,
             const std::vector<int32_t>& ids) {
            self.trunk().expect_behind(before, ids);
          },
          nb::arg("before"),
          nb::arg("ids"),
          "Starts reading the n-gram rows of ids that will follow `before`.")
      .def(
          "prewarm",
          [](const model::Model& self, uint64_t n_bytes) {
            for (auto* stager : self.trunk().stagers()) {
              stager->prewarm(n_bytes);
            }
          },
          nb::arg("n_bytes"),
          "Reads so much of each table in the background, for the system's "
          "page cache.")
      .def_prop_ro(
          "ple_stats",
          [](const model::Model& self) {
            nb::list out;
            for (const auto* stager : self.trunk().stagers()) {
              out.append(stager_stats(*stager));
            }
            return out;
          },
          "Counters of the n-gram stagers, one for each n-gram layer.")
      .def_prop_ro(
          "bytes_by_kind",
          [](const model::Model& self) { return self.bytes_by_kind(); },
          "Bytes read, by stored form (\"BF16\", \"4-bit\", ...).");
}

} // namespace qwenmtp::bindings
