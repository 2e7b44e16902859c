/** Room ple: n-gram rows, tables, the stager. Arrays cross as numpy; bf16 as
 *  uint16. */
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/ple_values.h"
#include "ple/bare_reads.h"
#include "ple/open.h"
#include "ple/resident.h"
#include "ple/row_file.h"
#include "ple/stager.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qwenmtp::bindings {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig>;
using Rows = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig>;

template <typename T>
std::span<const T> span_of(
    const nb::ndarray<const T, nb::ndim<1>, nb::c_contig>& a) {
  return {a.data(), a.size()};
}

/** Calls fill(pointer) on a new array [n, columns]. */
template <typename T, typename Fill>
nb::object filled(size_t n, size_t columns, Fill&& fill) {
  auto buffer = std::make_unique_for_overwrite<T[]>(n * columns);
  fill(buffer.get());
  nb::capsule owner(buffer.get(), [](void* p) noexcept {
    delete[] static_cast<T*>(p);
  });
  return nb::ndarray<nb::numpy, T, nb::ndim<2>>(
             buffer.release(),
             {n, columns},
             owner)
      .cast();
}

/** Calls fill(type, pointer) on a new float32 or uint16 array [n, columns]. */
template <typename Fill>
nb::object filled_values(
    size_t n,
    size_t columns,
    ple::RowType type,
    Fill&& fill) {
  if (type == ple::RowType::kFloat32) {
    return filled<float>(n, columns, [&](float* p) { fill(p); });
  }
  return filled<uint16_t>(n, columns, [&](uint16_t* p) { fill(p); });
}

} // namespace

nb::dict stager_stats(const ple::Stager& stager) {
  nb::dict d = to_dict(stager.stats());
  d["residency"] = stager.resident() ? "resident" : "ssd";
  const ple::PrewarmReceipt prewarm = stager.prewarmed();
  nb::dict warm;
  warm["wanted_bytes"] = prewarm.wanted_bytes;
  warm["read_bytes"] = prewarm.read_bytes;
  warm["seconds"] = prewarm.seconds;
  warm["ended"] = prewarm.ended;
  d["prewarm"] = warm;
  return d;
}

void register_ple(nb::module_& m) {
  nb::class_<ple::NgramConfig>(m, "NgramConfig")
      .def(
          "__init__",
          [](ple::NgramConfig* self,
             int64_t vocab,
             int ngram_size,
             int heads_per_ngram,
             std::vector<int64_t> multipliers,
             std::vector<int64_t> sizes,
             std::vector<int64_t> offsets,
             int32_t eos) {
            new (self) ple::NgramConfig{
                vocab,
                ngram_size,
                heads_per_ngram,
                std::move(multipliers),
                std::move(sizes),
                std::move(offsets),
                eos};
          },
          nb::kw_only(),
          "vocab"_a,
          "ngram_size"_a,
          "heads_per_ngram"_a,
          "multipliers"_a,
          "sizes"_a,
          "offsets"_a,
          "eos"_a)
      .def(
          "check",
          [](const ple::NgramConfig& self, int64_t table_rows) {
            ple::check(self, table_rows);
          },
          "table_rows"_a);
  m.def(
      "ngram_rows",
      [](const ple::NgramConfig& config, const Ids& ids, const Rows& history) {
        return filled<int64_t>(
            ids.size(),
            static_cast<size_t>(config.heads()),
            [&](int64_t* p) {
              ple::ngram_rows(config, span_of(ids), span_of(history), p);
            });
      },
      "config"_a,
      "ids"_a,
      "history"_a,
      "Table rows [n, heads] of ids; history is the ids before, eos padded.");
  m.def(
      "ngram_multipliers",
      &ple::ngram_multipliers,
      "seed"_a,
      "vocab"_a,
      "ngram_size"_a,
      "ple_index"_a);
  m.def(
      "ngram_heads",
      [](int64_t base, int n_heads, int ple_index) {
        auto layout = ple::ngram_heads(base, n_heads, ple_index);
        return std::pair(std::move(layout.sizes), std::move(layout.offsets));
      },
      "base"_a,
      "n_heads"_a,
      "ple_index"_a,
      "(sizes, offsets) of the hash heads.");

  nb::enum_<ple::RowType>(m, "RowType")
      .value("float32", ple::RowType::kFloat32)
      .value("bfloat16", ple::RowType::kBfloat16)
      .value("bfloat16_fused", ple::RowType::kBfloat16Fused);
  nb::enum_<ple::Coding>(m, "Coding")
      .value("bf16", ple::Coding::kBf16)
      .value("f32", ple::Coding::kF32)
      .value("affine", ple::Coding::kAffine)
      .value("fp8", ple::Coding::kFp8);
  nb::class_<ple::RowFormat>(m, "RowFormat")
      .def(
          "__init__",
          [](ple::RowFormat* self,
             int dim,
             ple::Coding coding,
             int bits,
             int group_size,
             float fp8_scale) {
            new (self) ple::RowFormat{dim, coding, bits, group_size, fp8_scale};
          },
          nb::kw_only(),
          "dim"_a,
          "coding"_a,
          "bits"_a = 0,
          "group_size"_a = 0,
          "fp8_scale"_a = 1.0f)
      .def_prop_ro("record_bytes", &ple::RowFormat::record_bytes);
  nb::class_<ple::Plane>(m, "PlePlane")
      .def(
          "__init__",
          [](ple::Plane* self, std::string path, uint64_t offset) {
            new (self) ple::Plane{std::move(path), offset};
          },
          "path"_a,
          "offset"_a);
  nb::class_<ple::Shard>(m, "PleShard")
      .def(
          "__init__",
          [](ple::Shard* self, int64_t rows, std::vector<ple::Plane> planes) {
            new (self) ple::Shard{rows, std::move(planes)};
          },
          "rows"_a,
          "planes"_a);

  nb::class_<ple::TableSpec>(m, "PleTableSpec")
      .def(
          "__init__",
          [](ple::TableSpec* self,
             const ple::RowFormat& format,
             std::vector<ple::Shard> shards,
             std::string row_file,
             bool checksums) {
            new (self) ple::TableSpec{
                format,
                std::move(shards),
                std::move(row_file),
                checksums};
          },
          "format"_a,
          "shards"_a,
          nb::kw_only(),
          "row_file"_a = "",
          "checksums"_a = false)
      .def(
          "with_row_file",
          [](ple::TableSpec self, std::string row_file, bool checksums) {
            self.row_file = std::move(row_file);
            self.checksums = checksums;
            return self;
          },
          "row_file"_a,
          nb::kw_only(),
          "checksums"_a);

  nb::class_<ple::OpenOptions>(m, "PleOptions")
      .def(
          "__init__",
          [](ple::OpenOptions* self,
             int n_threads,
             uint64_t hot_bytes,
             bool read_ahead,
             bool staging,
             std::string row_file,
             bool checksums,
             std::optional<uint64_t> resident_budget) {
            new (self) ple::OpenOptions();
            self->stager = {n_threads, hot_bytes, read_ahead, staging};
            self->row_file = std::move(row_file);
            self->checksums = checksums;
            self->resident_budget_bytes = resident_budget;
          },
          nb::kw_only(),
          "n_threads"_a = ple::StagerOptions{}.n_threads,
          "hot_bytes"_a = ple::StagerOptions{}.hot_bytes,
          "read_ahead"_a = true,
          "staging"_a = true,
          "row_file"_a = "",
          "checksums"_a = false,
          "resident_budget"_a = nb::none(),
          "How a model reads its n-gram table.");

  nb::class_<ple::Table>(m, "PleTable")
      .def_static("open", &ple::Table::open, "spec"_a)
      .def_prop_ro("rows", &ple::Table::rows)
      .def_prop_ro("bytes", &ple::Table::bytes)
      .def(
          "gather",
          [](const ple::Table& self, const Rows& rows, ple::RowType type) {
            return filled_values(
                rows.size(),
                static_cast<size_t>(self.format().dim),
                type,
                [&](void* p) { self.gather(span_of(rows), type, p); });
          },
          "rows"_a,
          "type"_a,
          "Values [n, dim]: float32, or the bits of bf16 as uint16.");
  nb::class_<ple::RowFileWriter>(m, "PleRowFileWriter")
      .def(
          nb::init<const ple::Table&, const std::string&>(),
          "source"_a,
          "path"_a,
          nb::keep_alive<1, 2>())
      .def_prop_ro("rows_done", &ple::RowFileWriter::rows_done)
      .def(
          "step",
          &ple::RowFileWriter::step,
          "n_rows"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "commit",
          &ple::RowFileWriter::commit,
          nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "ple_first_difference",
      &ple::first_difference,
      "a"_a,
      "b"_a,
      "first"_a,
      "n"_a,
      nb::call_guard<nb::gil_scoped_release>(),
      "First of n rows that differs between the tables, or -1.");

  m.def(
      "bare_reads",
      [](const std::string& path,
         const Rows& offsets,
         size_t n_bytes,
         int n_threads) {
        const nb::gil_scoped_release unlocked;
        ple::bare_reads(path, span_of(offsets), n_bytes, n_threads);
      },
      "path"_a,
      "offsets"_a,
      "n_bytes"_a,
      "n_threads"_a,
      "Reads n_bytes at every offset with threads that do nothing else.");

  nb::class_<ple::Stager>(m, "PleStager")
      .def(
          "__init__",
          [](ple::Stager* self,
             ple::NgramConfig config,
             const ple::TableSpec& spec,
             int n_threads,
             uint64_t hot_bytes,
             std::optional<uint64_t> resident_budget) {
            auto table = ple::Table::open(spec);
            if (resident_budget) {
              table = ple::make_resident(
                  table,
                  *resident_budget,
                  n_threads,
                  [](auto, auto) {});
            }
            new (self) ple::Stager(
                std::move(config),
                std::move(table),
                {.n_threads = n_threads, .hot_bytes = hot_bytes});
          },
          "config"_a,
          "spec"_a,
          nb::kw_only(),
          "n_threads"_a = ple::StagerOptions{}.n_threads,
          "hot_bytes"_a = ple::StagerOptions{}.hot_bytes,
          "resident_budget"_a = nb::none(),
          "With a budget in bytes the table is read into memory as a whole.")
      .def(
          "embed",
          [](ple::Stager& self,
             const Ids& ids,
             const Rows& history,
             ple::RowType type) {
            const auto columns = static_cast<size_t>(self.config().heads()) *
                                 static_cast<size_t>(self.format().dim);
            return filled_values(ids.size(), columns, type, [&](void* p) {
              const nb::gil_scoped_release unlocked;
              self.embed(span_of(ids), span_of(history), type, p);
            });
          },
          "ids"_a,
          "history"_a,
          "type"_a,
          "Values [n, heads * dim] of ids [n]; history is the ids before.")
      .def(
          "request",
          [](ple::Stager& self, const Ids& ids, const Rows& history) {
            self.request(span_of(ids), span_of(history));
          },
          "ids"_a,
          "history"_a,
          "Starts reading what embed will want; never waits.")
      .def("cancel", &ple::Stager::cancel, "Drops what was requested.")
      .def("clear_hot", &ple::Stager::clear_hot, "Forgets the hot rows.")
      .def("stats", &stager_stats);
}

} // namespace qwenmtp::bindings
