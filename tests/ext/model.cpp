/** Forwards, commits and state of a model, array by array, for the goldens. */
#include "testing.h"

#include <cstring>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "model/model.h"

namespace nb = nanobind;

namespace qwenmtp::testing {

namespace {

namespace mx = mlx::core;
using Arrays = std::vector<std::pair<std::string, mx::array>>;

/** A float32 or int64 copy of `a`. */
nb::object to_numpy(const mx::array& a) {
  bool whole = mx::issubdtype(a.dtype(), mx::integer) || a.dtype() == mx::bool_;
  auto b = mx::contiguous(mx::astype(a, whole ? mx::int64 : mx::float32));
  mx::eval(b);
  auto* data = new char[std::max<size_t>(b.nbytes(), 1)];
  std::memcpy(data, b.data<char>(), b.nbytes());
  nb::capsule owner(data, [](void* p) noexcept {
    delete[] static_cast<char*>(p);
  });
  std::vector<size_t> shape(b.shape().begin(), b.shape().end());
  auto make = [&]<typename T>(T*) -> nb::object {
    return nb::cast(
        nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner));
  };
  return whole ? make(static_cast<int64_t*>(nullptr))
               : make(static_cast<float*>(nullptr));
}

nb::dict to_dict(const Arrays& arrays) {
  nb::dict d;
  for (const auto& [name, a] : arrays) {
    d[name.c_str()] = to_numpy(a);
  }
  return d;
}

void add_cache(
    Arrays& out,
    const std::string& prefix,
    const state::KvCache& cache) {
  out.emplace_back(prefix + "k", cache.keys(0, cache.len()));
  out.emplace_back(prefix + "v", cache.values(0, cache.len()));
  out.emplace_back(prefix + "raw", cache.raw(0, cache.len()));
  out.emplace_back(prefix + "pooled", cache.pooled(0, cache.n_blocks()));
}

/** One live sequence of a model: what a session holds, laid open. */
class Sequence {
 public:
  explicit Sequence(const model::Model& model)
      : model_(model), trunk_(model.trunk().initial_state()) {
    if (model.mtp_head()) {
      mtp_ = model.mtp_head()->initial_state();
    }
  }

  nb::dict forward(const std::vector<int32_t>& ids, bool window, bool trace) {
    model::Trace named;
    auto out = model_.trunk().forward(
        ids,
        trunk_,
        model::LogitRows::all,
        window,
        trace ? model::Tracer(&named) : model::Tracer());
    hidden_ = out.hidden;
    Arrays all(named.begin(), named.end());
    all.emplace_back("logits", *out.logits);
    all.emplace_back("hyper", out.hidden);
    settle();
    return to_dict(all);
  }

  void commit(int keep) {
    model_.trunk().commit(trunk_, keep);
    settle();
  }

  /** The head over hidden rows [n, C * H] of any origin. */
  nb::dict draft(
      nb::ndarray<const float, nb::ndim<2>, nb::c_contig> hidden,
      const std::vector<int32_t>& ids,
      bool append_only) {
    auto rows = mx::astype(
        mx::array(
            hidden.data(),
            {static_cast<int>(hidden.shape(0)),
             static_cast<int>(hidden.shape(1))}),
        model_.dtype());
    Arrays all;
    if (append_only) {
      model_.mtp_head()->append(rows, ids, *mtp_);
    } else {
      auto out = model_.mtp_head()->forward(
          rows,
          model_.trunk().embedding()(ids),
          *mtp_);
      all = {{"logits", out.logits}, {"hyper", out.hidden}};
    }
    return to_dict(all);
  }

  void truncate_history(int len) {
    mtp_->cache.truncate(len);
  }

  nb::dict state() const {
    auto trunk = trunk_;
    model_.trunk().settle(trunk); // on a GPU rows wait in it
    Arrays all;
    for (size_t i = 0; i < trunk.layers.size(); i++) {
      const auto& layer = trunk.layers[i];
      auto p = "state." + std::to_string(i) + ".";
      if (const auto* gdn = std::get_if<state::GdnState>(&layer.mixer)) {
        all.emplace_back(p + "conv", gdn->conv);
        all.emplace_back(p + "delta", gdn->delta);
      } else {
        add_cache(all, p, std::get<state::KvCache>(layer.mixer));
      }
      if (layer.ple) {
        const auto& ids = layer.ple->ids;
        all.emplace_back(p + "pleconv", layer.ple->conv);
        all.emplace_back(
            p + "ngram",
            mx::array(ids.begin(), {static_cast<int>(ids.size())}, mx::int64));
      }
    }
    return to_dict(all);
  }

  nb::dict history() const {
    Arrays all;
    if (mtp_) {
      add_cache(all, "mtp.", mtp_->cache);
    }
    return to_dict(all);
  }

  /** Where the slabs of every attention layer lie. */
  std::vector<uintptr_t> slabs() const {
    std::vector<uintptr_t> at;
    for (const auto& layer : trunk_.layers) {
      if (const auto* cache = std::get_if<state::KvCache>(&layer.mixer)) {
        for (const auto& slab : cache->slabs()) {
          at.push_back(reinterpret_cast<uintptr_t>(slab.data<char>()));
        }
      }
    }
    return at;
  }

  int len() const {
    return trunk_.len;
  }

 private:
  void settle() {
    mx::eval(state::arrays(trunk_));
  }

  const model::Model& model_;
  state::TrunkState trunk_;
  std::optional<state::MtpState> mtp_;
  std::optional<mx::array> hidden_;
};

} // namespace

void register_model(nb::module_& m) {
  nb::class_<Sequence>(m, "Sequence")
      .def(nb::init<const model::Model&>(), nb::keep_alive<1, 2>())
      .def(
          "forward",
          &Sequence::forward,
          nb::arg("ids"),
          nb::arg("window") = false,
          nb::arg("trace") = false)
      .def("commit", &Sequence::commit)
      .def(
          "draft",
          &Sequence::draft,
          nb::arg("hidden"),
          nb::arg("ids"),
          nb::arg("append_only") = false)
      .def("truncate_history", &Sequence::truncate_history)
      .def("state", &Sequence::state)
      .def("history", &Sequence::history)
      .def("slabs", &Sequence::slabs)
      .def_prop_ro("len", &Sequence::len);
}

} // namespace qwenmtp::testing
