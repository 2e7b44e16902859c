/** The launchers of GDN and QSA over numpy arrays, on the CPU. */
#include <nanobind/stl/vector.h>

#include "kernels/gdn.h"
#include "kernels/qsa.h"
#include "launch.h"

namespace qwenmtp::testing {

void register_mixers(nb::module_& m) {
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
        return Launch{[rows =
                           kernels::QsaQueries{
                               to_mlx(q),
                               rows_of(
                                   {mx::zeros(
                                        {static_cast<int>(q_gate.shape(0)),
                                         2 * w.kv_heads *
                                             static_cast<int>(keys.shape(2))},
                                        dtype_of(q_gate),
                                        kCpu),
                                    to_mlx(q_gate)},
                                   1),
                               to_mlx(index_q),
                               to_mlx(keys),
                               to_mlx(values),
                               to_mlx(pooled),
                               first},
                       w] {
          auto r = kernels::qsa_attend(rows, w, kCpu);
          return std::vector<mx::array>{r.y, r.blocks};
        }};
      });
}

} // namespace qwenmtp::testing
