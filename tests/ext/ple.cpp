/** Room ple under test: many n-gram cases in one call, faults under the reads.
 */
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

#include "ple/ngram.h"
#include "testing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qwenmtp::testing {
namespace {

using Texts = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig>;
using Splits = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig>;

/** Rows [n, length - history, heads] of texts [n, length] that begin with their
 *  history, each hashed as two chunks that meet at its split. */
nb::object ngram_rows_of_texts(
    const ple::NgramConfig& config,
    const Texts& texts,
    const Splits& splits) {
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

} // namespace

void register_ple(nb::module_& m) {
  m.def(
      "ple_ngram_rows",
      [](int64_t vocab,
         int ngram_size,
         int heads_per_ngram,
         std::vector<int64_t> multipliers,
         std::vector<int64_t> sizes,
         std::vector<int64_t> offsets,
         int32_t eos,
         const Texts& texts,
         const Splits& splits) {
        const ple::NgramConfig config{
            vocab,
            ngram_size,
            heads_per_ngram,
            std::move(multipliers),
            std::move(sizes),
            std::move(offsets),
            eos};
        return ngram_rows_of_texts(config, texts, splits);
      },
      nb::kw_only(),
      "vocab"_a,
      "ngram_size"_a,
      "heads_per_ngram"_a,
      "multipliers"_a,
      "sizes"_a,
      "offsets"_a,
      "eos"_a,
      "texts"_a,
      "splits"_a);
}

} // namespace qwenmtp::testing
