/** Room ple under test: many n-gram cases in one call, faults under the reads.
 */
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file.h"
#include "bindings/model_values.h"
#include "ple/hot_rows.h"
#include "ple/open.h"
#include "ple/resident.h"
#include "ple/stager.h"
#include "ple/unique_rows.h"
#include "testing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qwenmtp::testing {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig>;
using Texts = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig>;
using Longs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig>;

/** Rows [n, length - history, heads] of texts [n, length] that begin with their
 *  history, each hashed as two chunks that meet at its split. */
nb::object ngram_rows_of_texts(
    const ple::NgramConfig& config,
    const Texts& texts,
    const Longs& splits) {
  const auto past = static_cast<size_t>(config.history_len());
  const auto heads = static_cast<size_t>(config.heads());
  const size_t n_ids = texts.shape(1) - past;
  auto rows = std::make_unique<int64_t[]>(texts.shape(0) * n_ids * heads);
  int64_t* out = rows.get();
  for (size_t i = 0; i < texts.shape(0); ++i, out += n_ids * heads) {
    const int32_t* text = texts.data() + i * texts.shape(1);
    const std::vector<int64_t> wide(text, text + texts.shape(1));
    const std::span ids(text + past, n_ids);
    const auto split = static_cast<size_t>(splits.data()[i]);
    ple::ngram_rows(config, ids.first(split), {wide.data(), past}, out);
    ple::ngram_rows(
        config,
        ids.subspan(split),
        {wide.data() + split, past},
        out + split * heads);
  }
  nb::capsule owner(rows.get(), [](void* p) noexcept {
    delete[] static_cast<int64_t*>(p);
  });
  return nb::ndarray<nb::numpy, int64_t, nb::ndim<3>>(
             rows.release(),
             {texts.shape(0), n_ids, heads},
             owner)
      .cast();
}

/** What pread does instead of reading, from call number `from` on, `times`
 *  calls long. */
enum class Fault { none, eio, eof, eintr, partial };
std::atomic<Fault> fault{Fault::none};
std::atomic<int64_t> calls_before{0};
std::atomic<int64_t> calls_left{0};

long faulty_pread(int fd, void* out, size_t bytes, int64_t offset) {
  const bool now =
      calls_before.fetch_sub(1) <= 0 && calls_left.fetch_sub(1) > 0;
  switch (now ? fault.load() : Fault::none) {
    case Fault::eio:
      errno = EIO;
      return -1;
    case Fault::eof:
      return 0;
    case Fault::eintr:
      errno = EINTR;
      return -1;
    case Fault::partial:
      bytes = std::min<size_t>(bytes, 1);
      [[fallthrough]];
    case Fault::none:
      break;
  }
  return ::pread(fd, out, bytes, offset);
}

void set_fault(const std::string& name, int64_t from, int64_t times) {
  const char* names[] = {"none", "eio", "eof", "eintr", "partial"};
  const auto* found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) {
    throw std::invalid_argument("unknown fault " + name);
  }
  fault = static_cast<Fault>(found - std::begin(names));
  calls_before = from;
  calls_left = times;
  set_pread_function(name == "none" ? nullptr : faulty_pread);
}

/** A stager that reads through the faults. */
class FaultyStager {
 public:
  FaultyStager(
      const ple::NgramConfig& config,
      const ple::TableSpec& spec,
      int n_threads,
      uint64_t hot_bytes)
      : stager_(
            config,
            ple::Table::open(spec),
            {.n_threads = n_threads, .hot_bytes = hot_bytes}) {
  }

  nb::object embed(const Ids& ids, const Longs& history) {
    const size_t columns = static_cast<size_t>(stager_.config().heads()) *
                           static_cast<size_t>(stager_.format().dim);
    auto values = std::make_unique<float[]>(ids.size() * columns);
    stager_.embed(
        {ids.data(), ids.size()},
        {history.data(), history.size()},
        ple::RowType::kFloat32,
        values.get());
    nb::capsule owner(values.get(), [](void* p) noexcept {
      delete[] static_cast<float*>(p);
    });
    return nb::ndarray<nb::numpy, float, nb::ndim<2>>(
               values.release(),
               {ids.size(), columns},
               owner)
        .cast();
  }

  void request(const Ids& ids, const Longs& history) {
    stager_.request({ids.data(), ids.size()}, {history.data(), history.size()});
  }

  uint64_t failures() const {
    return stager_.stats().failures;
  }

 private:
  ple::Stager stager_;
};

/** The slab with int64 records: insert stores the value, find gives it. */
class TestHotRows {
 public:
  explicit TestHotRows(uint64_t budget_bytes)
      : rows_(budget_bytes, sizeof(int64_t)) {
  }

  void insert(int64_t row, int64_t value) {
    rows_.insert(row, reinterpret_cast<const std::byte*>(&value));
  }

  nb::object find(int64_t row) {
    const std::byte* record = rows_.find(row);
    if (record == nullptr) {
      return nb::none();
    }
    int64_t value;
    std::memcpy(&value, record, sizeof(value));
    return nb::int_(value);
  }

  ple::HotRows rows_;
};

} // namespace

void register_ple(nb::module_& m) {
  m.def(
      "ple_ngram_rows",
      &ngram_rows_of_texts,
      "config"_a,
      "texts"_a,
      "splits"_a);
  m.def(
      "ple_unique_rows",
      [](const Longs& lookup) {
        auto unique = ple::unique_rows({lookup.data(), lookup.size()});
        return std::tuple(
            std::move(unique.rows),
            std::move(unique.slots),
            std::move(unique.first));
      },
      "lookup"_a);
  m.def(
      "ple_fault",
      &set_fault,
      "name"_a,
      "after"_a = 0,
      "times"_a = std::numeric_limits<int64_t>::max(),
      "What pread does `times` times, once `after` calls went through: none, "
      "eio, eof, eintr, partial.");
  m.def(
      "Model",
      [](const nb::dict& geometry,
         const std::string& layout,
         std::vector<std::string> files,
         const std::vector<bindings::TensorRow>& tensors,
         const bindings::Widths& quant,
         bool float32,
         nb::handle /* progress */,
         const ple::OpenOptions& options) {
        return std::make_unique<model::Model>(
            bindings::to_config(geometry),
            bindings::to_weights(
                layout,
                std::move(files),
                tensors,
                quant,
                float32),
            options);
      },
      "A _core.Model whose files are read through the faults.");
  nb::class_<FaultyStager>(m, "FaultyStager")
      .def(
          nb::init<
              const ple::NgramConfig&,
              const ple::TableSpec&,
              int,
              uint64_t>(),
          "config"_a,
          "spec"_a,
          nb::kw_only(),
          "n_threads"_a,
          "hot_bytes"_a)
      .def("embed", &FaultyStager::embed)
      .def("request", &FaultyStager::request)
      .def_prop_ro("failures", &FaultyStager::failures);
  m.def(
      "ple_resident_progress",
      [](const ple::TableSpec& spec, uint64_t budget_bytes, int n_threads) {
        std::vector<std::pair<uint64_t, uint64_t>> seen;
        ple::make_resident(
            ple::Table::open(spec),
            budget_bytes,
            n_threads,
            [&](uint64_t done, uint64_t total) {
              seen.emplace_back(done, total);
            });
        return seen;
      },
      "spec"_a,
      "budget_bytes"_a,
      "n_threads"_a,
      "(done, total) as make_resident reports them.");
  nb::class_<TestHotRows>(m, "HotRows")
      .def(nb::init<uint64_t>(), "budget_bytes"_a)
      .def("insert", &TestHotRows::insert)
      .def(
          "find",
          &TestHotRows::find,
          nb::sig("def find(self, row: int) -> int | None"))
      .def("clear", [](TestHotRows& self) { self.rows_.clear(); })
      .def_prop_ro(
          "bytes",
          [](const TestHotRows& self) { return self.rows_.bytes(); })
      .def_prop_ro("capacity", [](const TestHotRows& self) {
        return self.rows_.capacity();
      });
}

} // namespace qwenmtp::testing
