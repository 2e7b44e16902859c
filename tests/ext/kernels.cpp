/** The launchers of csrc/kernels over numpy arrays, on the CPU. */
#include <chrono>
#include <functional>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "kernels/gdn.h"
#include "kernels/hyper.h"
#include "kernels/moe.h"
#include "kernels/ple.h"
#include "kernels/pool.h"
#include "kernels/qsa.h"
#include "kernels/rows.h"
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

constexpr auto kCpu = mx::Device::cpu;

mx::array rows_of(std::vector<mx::array> parts, int axis) {
  return mx::concatenate(std::move(parts), axis, kCpu);
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

/** A launch with its arguments: run() gives the outputs, seconds(n) the time of
 * n such nodes in one evaluation. */
struct Launch {
  std::function<std::vector<mx::array>()> build;

  nb::list run() const {
    nb::list out;
    for (const mx::array& a : build()) {
      out.append(to_numpy(a));
    }
    return out;
  }

  double seconds(int repeats) const {
    auto start = std::chrono::steady_clock::now();
    std::vector<mx::array> outputs;
    for (int i = 0; i < repeats; ++i) {
      for (mx::array& a : build()) {
        outputs.push_back(std::move(a));
      }
    }
    mx::eval(outputs);
    return std::chrono::duration<double>(
               std::chrono::steady_clock::now() - start)
        .count();
  }
};

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

  nb::class_<kernels::GdnWeights>(m, "GdnWeights")
      .def(
          "__init__",
          [](kernels::GdnWeights* self,
             const NumPy& taps,
             const NumPy& decay_rate,
             const NumPy& dt_bias,
             const NumPy& norm,
             int hk,
             int hv,
             int dk,
             int dv,
             float eps) {
            new (self) kernels::GdnWeights{
                to_mlx(taps),
                to_mlx(decay_rate),
                to_mlx(dt_bias),
                to_mlx(norm),
                hk,
                hv,
                dk,
                dv,
                eps};
          });
  m.def(
      "gdn",
      [](const NumPy& qkv,
         const NumPy& a,
         const NumPy& b,
         const NumPy& z,
         const NumPy& conv,
         const NumPy& delta,
         const kernels::GdnWeights& w) {
        return Launch{
            [proj = rows_of({to_mlx(qkv), to_mlx(z), to_mlx(a), to_mlx(b)}, 1),
             states = kernels::GdnStates{to_mlx(conv), to_mlx(delta), {}, 0},
             w] {
              auto r = kernels::gdn(proj, states, w, kCpu);
              auto after = kernels::gdn_settled(r.states, w, kCpu);
              return std::vector<mx::array>{r.y, after.conv, after.delta};
            }};
      });
  m.def(
      "gdn_commit",
      [](const NumPy& qkv,
         const NumPy& a,
         const NumPy& b,
         int keep,
         const NumPy& conv,
         const NumPy& delta,
         const kernels::GdnWeights& w) {
        return Launch{
            [proj = rows_of(
                 {to_mlx(qkv),
                  mx::zeros(
                      {static_cast<int>(a.shape(0)),
                       w.value_heads * w.value_dim},
                      dtype_of(qkv),
                      kCpu),
                  to_mlx(a),
                  to_mlx(b)},
                 1),
             keep,
             states = kernels::GdnStates{to_mlx(conv), to_mlx(delta), {}, 0},
             w] {
              auto before = kernels::gdn(proj, states, w, kCpu).before;
              auto r = kernels::gdn_settled(
                  kernels::gdn_commit(before, keep, w, kCpu),
                  w,
                  kCpu);
              return std::vector<mx::array>{r.conv, r.delta};
            }};
      });

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

  nb::class_<kernels::QsaWeights>(m, "QsaWeights")
      .def(
          "__init__",
          [](kernels::QsaWeights* self,
             const NumPy& q_norm,
             const NumPy& k_norm,
             const NumPy& index_q_norm,
             const NumPy& index_k_norm,
             int heads,
             int kv_heads,
             int index_heads,
             int ratio,
             int budget_blocks,
             float eps) {
            new (self) kernels::QsaWeights{
                to_mlx(q_norm),
                to_mlx(k_norm),
                to_mlx(index_q_norm),
                to_mlx(index_k_norm),
                heads,
                kv_heads,
                index_heads,
                ratio,
                budget_blocks,
                eps};
          });
  m.def(
      "qsa_prepare",
      [](const NumPy& q_gate,
         const NumPy& k,
         const NumPy& v,
         const NumPy& index,
         const NumPy& raw_tail,
         const NumPy& cos,
         const NumPy& sin,
         const NumPy& block_cos,
         const NumPy& block_sin,
         const kernels::QsaWeights& w) {
        return Launch{
            [rows =
                 kernels::QsaRows{
                     rows_of({to_mlx(k), to_mlx(v), to_mlx(q_gate)}, 1),
                     to_mlx(index)},
             tail = to_mlx(raw_tail),
             at = kernels::QsaRope{to_mlx(cos), to_mlx(sin)},
             blocks = kernels::QsaRope{to_mlx(block_cos), to_mlx(block_sin)},
             w] {
              auto r = kernels::qsa_prepare(rows, tail, at, blocks, w, kCpu);
              return std::vector<mx::array>{
                  r.k,
                  r.v,
                  r.raw,
                  r.pooled,
                  *r.q,
                  *r.index_q};
            }};
      });
  m.def(
      "qsa_attend",
      [](const NumPy& q,
         const NumPy& q_gate,
         const NumPy& index_q,
         const NumPy& keys,
         const NumPy& values,
         const NumPy& pooled,
         int first,
         const kernels::QsaWeights& w) {
        return Launch{
            [q = to_mlx(q),
             proj = rows_of(
                 {mx::zeros(
                      {static_cast<int>(q_gate.shape(0)),
                       2 * w.kv_heads * static_cast<int>(keys.shape(2))},
                      dtype_of(q_gate),
                      kCpu),
                  to_mlx(q_gate)},
                 1),
             index_q = to_mlx(index_q),
             keys = to_mlx(keys),
             values = to_mlx(values),
             pooled = to_mlx(pooled),
             first,
             w] {
              auto r = kernels::qsa_attend(
                  q,
                  proj,
                  index_q,
                  keys,
                  values,
                  pooled,
                  first,
                  w,
                  kCpu);
              return std::vector<mx::array>{r.y, r.blocks};
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
}

} // namespace qwenmtp::testing
