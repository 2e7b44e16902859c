#include "keyed.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>

#include "testing.h"

namespace nb = nanobind;

namespace qwenmtp::testing {

namespace mx = mlx::core;

using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig>;

namespace {

mx::array to_row(const Row& values, const std::string& dtype) {
  const auto size = static_cast<int>(values.size());
  const mx::array row(values.data(), {size}, mx::float32);
  if (dtype == "float32") {
    return row;
  }
  return mx::astype(row, dtype == "float16" ? mx::float16 : mx::bfloat16);
}

} // namespace

KeyedSampler::KeyedSampler(uint64_t seed, const sampling::Params& params)
    : params_(params),
      chain_(mx::random::key(seed & 0x7FFFFFFF)),
      last_(chain_) {
}

mx::array KeyedSampler::operator()(const mx::array& row) {
  std::tie(chain_, last_) = mx::random::split(chain_);
  const auto scale = static_cast<float>(1.0 / params_.temperature);
  const int size = row.shape(0);
  const int k = static_cast<int>(std::min<int64_t>(params_.top_k, size));
  const mx::array scaled = mx::astype(row, mx::float32) * scale;
  const mx::array ids = mx::astype(
      mx::slice(mx::argsort(mx::negative(scaled)), {0}, {k}),
      mx::int32);
  mx::array weights = mx::take(scaled, ids);
  if (params_.nucleus()) {
    const mx::array mass = mx::exp(weights - mx::logsumexp(scaled));
    const mx::array before = mx::cumsum(mass) - mass;
    const mx::array keep = mx::logical_or(
        mx::arange(k) < 1,
        before < static_cast<float>(params_.top_p));
    weights = mx::where(
        keep,
        weights,
        mx::array(-std::numeric_limits<float>::infinity()));
  }
  const mx::array rank =
      mx::random::categorical(mx::expand_dims(weights, 0), -1, last_);
  const mx::array usable = mx::isfinite(mx::max(scaled));
  return mx::where(
      usable,
      mx::take(ids, mx::squeeze(rank)),
      mx::array(-1, mx::int32));
}

std::pair<uint32_t, uint32_t> KeyedSampler::last_key() const {
  mx::array key = mx::contiguous(last_);
  key.eval();
  return {key.data<uint32_t>()[0], key.data<uint32_t>()[1]};
}

} // namespace qwenmtp::testing

void register_keyed(nb::module_& m) {
  using namespace qwenmtp::testing;
  nb::class_<KeyedSampler>(m, "KeyedSampler")
      .def(nb::init<uint64_t, const qwenmtp::sampling::Params&>())
      .def(
          "token",
          [](KeyedSampler& s, const Row& row, const std::string& dtype) {
            return s.token(to_row(row, dtype));
          },
          nb::arg("row"),
          nb::arg("dtype") = "float32")
      .def_prop_ro("last_key", &KeyedSampler::last_key);
}
