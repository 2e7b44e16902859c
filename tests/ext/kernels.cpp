/** The launchers of csrc/kernels over numpy arrays, on the CPU; those of the
 *  token mixers are in mixers.cpp. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "kernels/hyper.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/ple.h"
#include "kernels/pool.h"
#include "kernels/rows.h"
#include "kernels/sample.h"
#include "launch.h"
#include "model/embedding.h"
#include "testing.h"

namespace nb = nanobind;
using namespace nb::literals;
namespace mx = mlx::core;

namespace qwenmtp::testing {

namespace {

using kernels::Matrix;

/** (weight,) or (codes, scales, biases, bits, group). */
Matrix matrix(const nb::tuple& t) {
  Matrix m{to_mlx(nb::cast<NumPy>(t[0])), {}, {}, 0, 0};
  if (t.size() == 5) {
    m.scales = to_mlx(nb::cast<NumPy>(t[1]));
    m.biases = to_mlx(nb::cast<NumPy>(t[2]));
    m.bits = nb::cast<int>(t[3]);
    m.group = nb::cast<int>(t[4]);
  }
  return m;
}

model::Embedding embedding_of(const nb::tuple& table, bool bfloat16) {
  const Matrix t = matrix(table);
  return {
      {t.weight, t.scales, t.biases, {t.bits, t.group}},
      bfloat16 ? mx::bfloat16 : mx::float32};
}

/** Matrices of one form and some zero rows as one matrix. */
Matrix stacked(const std::vector<Matrix>& ms, int zeros) {
  auto join = [&](auto part) {
    std::vector<mx::array> all;
    for (const Matrix& m : ms) {
      all.push_back(part(m));
    }
    all.push_back(mx::zeros({zeros, all[0].shape(1)}, all[0].dtype(), kCpu));
    return rows_of(std::move(all), 0);
  };
  Matrix out{
      join([](const Matrix& m) { return m.weight; }),
      {},
      {},
      ms[0].bits,
      ms[0].group};
  if (ms[0].scales) {
    out.scales = join([](const Matrix& m) { return *m.scales; });
    out.biases = join([](const Matrix& m) { return *m.biases; });
  }
  return out;
}

kernels::HyperWeights hyper_weights(
    const NumPy& norm,
    const nb::tuple& down,
    const nb::tuple& up,
    const std::optional<nb::tuple>& inject,
    int streams,
    float eps) {
  std::vector<Matrix> parts = {matrix(down)};
  if (inject) {
    parts.push_back(matrix(*inject));
  }
  return {
      to_mlx(norm),
      stacked(parts, 8 - (inject ? streams : 0)),
      matrix(up),
      inject.has_value(),
      streams,
      eps};
}

void push_read(std::vector<mx::array>& out, const kernels::HyperRead& read) {
  out.push_back(read.mix);
  if (read.inject) {
    out.push_back(*read.inject);
  }
}

/** The same product by MLX's own operators, for comparison in one run. */
mx::array stock_product(const mx::array& x, const Matrix& m) {
  if (m.scales) {
    return mx::quantized_matmul(
        x,
        m.weight,
        *m.scales,
        m.biases,
        true,
        m.group,
        m.bits,
        "affine",
        mx::Device::cpu);
  }
  return mx::matmul(
      x,
      mx::transpose(mx::astype(m.weight, x.dtype())),
      mx::Device::cpu);
}

} // namespace

void register_kernels(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("kernels");
  m.def("set_threads", &kernels::set_threads);
  m.def("threads", &kernels::threads);
  m.def("available_isas", &kernels::cpu::available_isas);
  m.def("select_isa", &kernels::cpu::select_isa);
  nb::class_<Launch>(m, "Launch")
      .def("run", &Launch::run)
      .def("seconds", &Launch::seconds);
  m.def("rows", [](const NumPy& x, const std::vector<nb::tuple>& matrices) {
    std::vector<Matrix> ms;
    for (const nb::tuple& t : matrices) {
      ms.push_back(matrix(t));
    }
    return Launch{
        [x = to_mlx(x), ms] { return kernels::rows(x, ms, mx::Device::cpu); }};
  });
  m.def("rms_norm", [](const NumPy& x, const NumPy& weight, float eps) {
    return Launch{[x = to_mlx(x), weight = to_mlx(weight), eps] {
      return std::vector{kernels::rms_norm(x, weight, eps, kCpu)};
    }};
  });
  m.def(
      "embedding_chosen",
      [](const nb::tuple& table, const NumPy& ids, bool bfloat16) {
        return to_numpy(embedding_of(table, bfloat16)(to_mlx(ids)));
      });
  m.def(
      "embedding",
      [](const nb::tuple& table,
         const std::vector<int32_t>& ids,
         int copies,
         bool bfloat16) {
        return to_numpy(embedding_of(table, bfloat16)(ids, copies));
      });
  m.def(
      "stock_rows",
      [](const NumPy& x, const std::vector<nb::tuple>& matrices) {
        std::vector<Matrix> ms;
        for (const nb::tuple& t : matrices) {
          ms.push_back(matrix(t));
        }
        return Launch{[x = to_mlx(x), ms] {
          std::vector<mx::array> y;
          for (const Matrix& m : ms) {
            y.push_back(stock_product(x, m));
          }
          return y;
        }};
      });

  m.def(
      "hyper_read",
      [](const NumPy& x,
         const NumPy& norm,
         const nb::tuple& down,
         const nb::tuple& up,
         const std::optional<nb::tuple>& inject,
         int streams,
         float eps) {
        return Launch{
            [x = to_mlx(x),
             w = hyper_weights(norm, down, up, inject, streams, eps)] {
              std::vector<mx::array> out;
              push_read(out, kernels::hyper_read(x, w, kCpu));
              return out;
            }};
      },
      "x"_a,
      "norm"_a,
      "down"_a,
      "up"_a,
      "inject"_a.none(),
      "streams"_a,
      "eps"_a);
  m.def("hyper_write", [](const NumPy& x, const NumPy& y, const NumPy& inject) {
    return Launch{[x = to_mlx(x), y = to_mlx(y), g = to_mlx(inject)] {
      return std::vector<mx::array>{kernels::hyper_write(x, y, g, kCpu)};
    }};
  });
  m.def(
      "hyper_write_read",
      [](const NumPy& x,
         const NumPy& y,
         const NumPy& g,
         const NumPy& norm,
         const nb::tuple& down,
         const nb::tuple& up,
         const std::optional<nb::tuple>& inject,
         int streams,
         float eps) {
        return Launch{
            [x = to_mlx(x),
             y = to_mlx(y),
             g = to_mlx(g),
             w = hyper_weights(norm, down, up, inject, streams, eps)] {
              auto r = kernels::hyper_write_read(x, y, g, w, kCpu);
              std::vector<mx::array> out = {r.x};
              push_read(out, r.read);
              return out;
            }};
      },
      "x"_a,
      "y"_a,
      "g"_a,
      "norm"_a,
      "down"_a,
      "up"_a,
      "inject"_a.none(),
      "streams"_a,
      "eps"_a);

  m.def("moe", [](const NumPy& u, const std::vector<nb::tuple>& w, int top_k) {
    kernels::MoeWeights weights{
        matrix(w.at(0)),
        matrix(w.at(1)),
        matrix(w.at(2)),
        matrix(w.at(3)),
        matrix(w.at(4)),
        matrix(w.at(5)),
        matrix(w.at(6)),
        matrix(w.at(7)),
        top_k};
    return Launch{[u = to_mlx(u), weights] {
      auto r = kernels::moe(u, weights, kCpu);
      return std::vector<mx::array>{r.y, r.ids, r.weights};
    }};
  });

  m.def(
      "ple",
      [](const NumPy& x,
         const NumPy& key,
         const NumPy& value,
         const NumPy& conv,
         const std::vector<NumPy>& norms,
         const NumPy& taps,
         int streams,
         int dilation,
         float eps) {
        kernels::PleWeights w{
            to_mlx(norms.at(0)),
            to_mlx(norms.at(1)),
            to_mlx(norms.at(2)),
            to_mlx(taps),
            streams,
            dilation,
            eps};
        return Launch{[x = to_mlx(x),
                       key = to_mlx(key),
                       value = to_mlx(value),
                       conv = to_mlx(conv),
                       w] {
          auto r = kernels::ple(x, key, value, conv, w, kCpu);
          return std::vector<mx::array>{r.added, r.normed, r.conv};
        }};
      });
  m.def("sample", [](const NumPy& logits, float scale, int most) {
    return Launch{[logits = to_mlx(logits), scale, most] {
      auto r = kernels::sample(logits, scale, most, kCpu);
      return std::vector<mx::array>{r.top, r.ids, r.ties, r.total};
    }};
  });
  m.def(
      "pick",
      [](const NumPy& top,
         const NumPy& ids,
         const NumPy& ties,
         const NumPy& total,
         int k,
         float top_p,
         float u) {
        const kernels::SampleOutput candidates{
            to_mlx(top),
            to_mlx(ids),
            to_mlx(ties),
            to_mlx(total)};
        return Launch{[candidates, law = kernels::PickLaw{k, top_p}, u] {
          return std::vector{kernels::pick(candidates, law, u, kCpu)};
        }};
      });
  register_mixers(m);
}

} // namespace qwenmtp::testing
