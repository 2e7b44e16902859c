/** The sampling room as it is, for tests and benchmarks. */
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include "bindings/decode_values.h"
#include "convert.h"
#include "sampling/acceptance.h"
#include "sampling/block_verify.h"
#include "sampling/draws.h"
#include "scripted.h"
#include "testing.h"

namespace nb = nanobind;
using namespace qwenmtp::sampling;

namespace {

using Array = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Overlay = std::vector<std::pair<int32_t, double>>;

/** Two-byte rows are bf16 unless named float16. */
RowView view(const Array& row, const std::string& dtype) {
  const auto size = static_cast<int32_t>(row.size());
  if (dtype == "float32") {
    return {row.data(), Dtype::float32, size};
  }
  return {
      row.data(),
      dtype == "float16" ? Dtype::float16 : Dtype::bfloat16,
      size};
}

Steering steering(
    const std::optional<TokenCounts>& counts,
    const Overlay& overlay) {
  return {counts ? &*counts : nullptr, overlay};
}

/** Row `case` of the fixtures' rule. */
nb::ndarray<nb::numpy, float, nb::ndim<1>> logits_row(
    uint64_t salt,
    uint64_t number,
    bool ties,
    int32_t vocab,
    double scale) {
  auto* row = new float[vocab];
  const uint64_t h = qwenmtp::testing::fold(salt, number);
  for (int32_t j = 0; j < vocab; j++) {
    const int n = static_cast<int>(qwenmtp::testing::noise(h, j));
    const double value = ties ? (n >> 13) - 4 : (n - 32768) / 8192.0;
    row[j] = static_cast<float>(value * scale);
  }
  const nb::capsule owner(row, [](void* p) noexcept {
    delete[] static_cast<float*>(p);
  });
  return {row, {static_cast<size_t>(vocab)}, owner};
}

} // namespace

void register_sampling(nb::module_& m) {
  nb::class_<Params>(m, "Params")
      .def(nb::init<double, double, int64_t, double, double>())
      .def_ro("temperature", &Params::temperature);

  nb::class_<Distribution>(m, "Distribution")
      .def(
          "__init__",
          [](Distribution* self,
             std::vector<int32_t> ids,
             std::vector<double> mass) {
            new (self) Distribution{std::move(ids), std::move(mass)};
          })
      .def_ro("ids", &Distribution::ids)
      .def_ro("mass", &Distribution::mass)
      .def("__getitem__", [](const Distribution& d, int32_t t) {
        return d[t];
      });

  nb::class_<Draws>(m, "Draws")
      .def(
          "__init__",
          [](Draws* self, nb::int_ seed) {
            new (self) Draws(Pcg64(qwenmtp::bindings::seed_words(seed)));
          })
      .def("token", &Draws::token)
      .def("accept", &Draws::accept)
      .def(
          "uniform",
          [](const Draws& d) { return Pcg64(d.generator()).uniform(); })
      .def_prop_ro(
          "state",
          [](const Draws& d) {
            return qwenmtp::testing::to_int(d.generator().state());
          })
      .def_prop_ro(
          "inc",
          [](const Draws& d) {
            return qwenmtp::testing::to_int(d.generator().inc());
          })
      .def_prop_ro("trace", &Draws::trace);

  nb::class_<Reader>(m, "Reader")
      .def(
          "__init__",
          [](Reader* self, const Params& params, bool relaxed) {
            new (self) Reader(params, relaxed ? Ties::relaxed : Ties::exact);
          },
          nb::arg("params"),
          nb::arg("relaxed") = false)
      .def(
          "distribution",
          [](Reader& self,
             const Array& row,
             const std::string& dtype,
             const std::optional<TokenCounts>& counts,
             const Overlay& overlay,
             bool once) {
            return self.distribution(
                view(row, dtype),
                steering(counts, overlay),
                once ? Normalise::once : Normalise::twice);
          },
          nb::arg("row"),
          nb::arg("dtype") = "float32",
          nb::arg("counts") = nb::none(),
          nb::arg("overlay") = Overlay{},
          nb::arg("once") = false)
      .def(
          "distribution_from",
          [](Reader& self,
             const std::vector<int32_t>& ids,
             const std::vector<float>& values,
             int64_t ties,
             float max,
             float exp_sum,
             int32_t size,
             bool once) -> std::optional<Distribution> {
            Distribution out;
            if (!self.distribution_from(
                    {ids, values, ties, max, exp_sum, self.scale(), size},
                    out,
                    once ? Normalise::once : Normalise::twice)) {
              return std::nullopt;
            }
            return out;
          },
          nb::arg("ids"),
          nb::arg("values"),
          nb::arg("ties"),
          nb::arg("max"),
          nb::arg("exp_sum"),
          nb::arg("size"),
          nb::arg("once") = false)
      .def(
          "best",
          [](Reader& self,
             const Array& row,
             const std::string& dtype,
             const std::optional<TokenCounts>& counts,
             const Overlay& overlay) {
            return self.best(view(row, dtype), steering(counts, overlay));
          },
          nb::arg("row"),
          nb::arg("dtype") = "float32",
          nb::arg("counts") = nb::none(),
          nb::arg("overlay") = Overlay{})
      .def(
          "log_probability",
          [](Reader& self, const Array& row, int32_t token, int n_top) {
            const LogProbability out =
                self.log_probability(view(row, "float32"), token, n_top);
            return nb::make_tuple(out.value, out.top);
          })
      .def(
          "argmax",
          [](Reader& self, const Array& row, const std::string& dtype) {
            return self.argmax(view(row, dtype));
          });

  nb::class_<BlockVerifier>(m, "BlockVerifier")
      .def(
          "__init__",
          [](BlockVerifier* self,
             const std::vector<Distribution>& p,
             const std::vector<Distribution>& q,
             const std::vector<int32_t>& drafts) {
            new (self) BlockVerifier(p, q, drafts);
          })
      .def("coin", &BlockVerifier::coin)
      .def("residual", &BlockVerifier::residual);

  m.def("logits_row", &logits_row);
  m.def("acceptance_probability", &acceptance_probability);
  m.def("residual", &residual);
  m.def("numpy_sum", [](const std::vector<double>& v) { return numpy_sum(v); });
}
