#include "kernels/moe.h"

#include <mlx/ops.h>

#include "base/error.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

constexpr int kMatrices = 8;

struct Form {
  int top_k;
  MatrixForm matrices[kMatrices];
};

/** Router, shared gate, up and weight, expert gate, up and down, shared down.
 */
std::vector<const Matrix*> in_order(const MoeWeights& w) {
  return {
      &w.router,
      &w.shared_gate,
      &w.shared_up,
      &w.shared_weight,
      &w.gate,
      &w.up,
      &w.down,
      &w.shared_down};
}

std::function<void()> bind_moe(
    const Form& form,
    const std::vector<array>& in,
    std::vector<array>& out) {
  cpu::MoeCall call{};
  call.type = type_of(in[0]);
  call.n_rows = in[0].shape(0);
  call.top_k = form.top_k;
  call.u = rows_of(in[0]);
  cpu::Weights* to[kMatrices] = {
      &call.first[0],
      &call.first[1],
      &call.first[2],
      &call.first[3],
      &call.gate,
      &call.up,
      &call.down,
      &call.shared_down};
  size_t at = 1;
  for (int i = 0; i < kMatrices; ++i) {
    *to[i] = weights_of(in, at, form.matrices[i]);
  }
  call.y = out_rows_of(out[0]);
  call.ids = out[1].data<int32_t>();
  call.weights = out_rows_of(out[2]);
  return [call, body = cpu::bodies().moe] { body(call); };
}

/** At most kTextRows rows. */
MoeOutput text_moe(const array& u, const MoeWeights& w, mx::StreamOrDevice s) {
  auto routed = text_node(
      "moe_route",
      {{"T", u.dtype()}, {"E", w.router.out()}, {"K", w.top_k}},
      {text_product(u, w.router, 0, 1, s), scalar(u.shape(0))},
      s);
  const auto &expert = routed[0], &weight = routed[1], &order = routed[2];
  auto hidden = text_gather_glu(u, expert, order, w.gate, w.up, s);
  auto y = text_gather(hidden, expert, order, weight, w.down, s);
  auto shared = text_product(
      text_glu(u, w.shared_gate, w.shared_up, s),
      w.shared_down,
      0,
      1,
      s);
  auto out = text_node(
      "moe_combine",
      {{"T", u.dtype()}, {"H", u.shape(1)}, {"K", w.top_k}},
      {shared, y, text_product(u, w.shared_weight, 0, 1, s)},
      s);
  return {out[0], expert, weight};
}

MoeOutput text_windows(
    const array& u,
    const MoeWeights& w,
    mx::StreamOrDevice s) {
  std::vector<array> y, ids, weights;
  for (int begin = 0; begin < u.shape(0); begin += kTextRows) {
    const int end = std::min(begin + kTextRows, u.shape(0));
    auto part = text_moe(rows_between(u, begin, end, s), w, s);
    y.push_back(part.y);
    ids.push_back(part.ids);
    weights.push_back(part.weights);
  }
  if (y.size() == 1) {
    return {y[0], ids[0], weights[0]};
  }
  return {
      mx::concatenate(y, 0, s),
      mx::concatenate(ids, 0, s),
      mx::concatenate(weights, 0, s)};
}

} // namespace

MoeOutput moe(const array& u, const MoeWeights& w, mx::StreamOrDevice s) {
  check_activation("moe", u);
  check_shape("moe", "u", u, {-1, -1});
  const int n = u.shape(0), hidden = u.shape(1);
  const int experts = w.router.out(), inter = w.gate.out(),
            shared = w.shared_gate.out();
  check_matrix("moe", w.router, experts, hidden);
  check_matrix("moe", w.gate, inter, hidden, experts);
  check_matrix("moe", w.up, inter, hidden, experts);
  check_matrix("moe", w.down, hidden, inter, experts);
  check_matrix("moe", w.shared_gate, shared, hidden);
  check_matrix("moe", w.shared_up, shared, hidden);
  check_matrix("moe", w.shared_down, hidden, shared);
  check_matrix("moe", w.shared_weight, 1, hidden);
  if (w.top_k < 1 || w.top_k > experts) {
    throw InvalidArgument(
        "[kernels.moe] top " + std::to_string(w.top_k) + " of " +
        std::to_string(experts) + " experts");
  }
  if (runs_text(s)) {
    return text_windows(u, w, s);
  }
  std::vector<array> inputs = {u};
  Form form{w.top_k, {}};
  int i = 0;
  for (const Matrix* m : in_order(w)) {
    form.matrices[i++] = append(inputs, *m);
  }
  auto bind = [form](const std::vector<array>& in, std::vector<array>& out) {
    return bind_moe(form, in, out);
  };
  auto out = cpu_node(
      "moe",
      bind,
      inputs,
      {u.shape(), {n, w.top_k}, {n, w.top_k}},
      {u.dtype(), mx::int32, u.dtype()},
      s);
  return {out[0], out[1], out[2]};
}

} // namespace qwenmtp::kernels
