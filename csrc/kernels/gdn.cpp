#include "kernels/gdn.h"

#include <mlx/ops.h>

#include "base/error.h"
#include "kernels/rows.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

std::function<void()> bind_gdn(
    const GdnWeights& w,
    int n_rows,
    bool output,
    const std::vector<array>& in,
    std::vector<array>& out) {
  const int channels = w.channels(), values = w.value_heads * w.value_dim;
  cpu::GdnCall call{};
  call.type = type_of(in[0]);
  call.n_rows = n_rows;
  call.key_heads = w.key_heads;
  call.value_heads = w.value_heads;
  call.key_dim = w.key_dim;
  call.value_dim = w.value_dim;
  call.kernel = in[3].shape(0);
  call.eps = w.eps;
  call.qkv = rows_of(in[0]);
  call.a = columns_of(in[0], channels + values);
  call.b = columns_of(in[0], channels + values + w.value_heads);
  call.conv = rows_of(in[1]);
  call.delta = static_cast<const float*>(vector_of(in[2]).data);
  call.taps = vector_of(in[3]);
  call.decay_rate = vector_of(in[4]);
  call.dt_bias = vector_of(in[5]);
  call.norm = vector_of(in[6]);
  call.conv_out = out_rows_of(out[0]);
  call.delta_out = out[1].data<float>();
  if (output) {
    call.z = columns_of(in[0], channels);
    call.y = out_rows_of(out[2]);
  }
  return [call, body = cpu::bodies().gdn] { body(call); };
}

void check(const array& proj, const GdnStates& states, const GdnWeights& w) {
  const int channels = w.channels(), kernel = w.taps.shape(0);
  check_activation("gdn", proj);
  check_shape("gdn", "proj", proj, {-1, w.width()});
  check_shape("gdn", "conv", states.conv, {kernel - 1, channels});
  check_shape(
      "gdn",
      "delta",
      states.delta,
      {w.value_heads, w.value_dim, w.key_dim});
  check_shape("gdn", "taps", w.taps, {kernel, channels});
  check_shape("gdn", "decay_rate", w.decay_rate, {w.value_heads});
  check_shape("gdn", "dt_bias", w.dt_bias, {w.value_heads});
  check_shape("gdn", "norm", w.norm, {w.value_dim});
  check_dtype("gdn", "conv", states.conv, proj.dtype());
  check_dtype("gdn", "delta", states.delta, mx::float32);
  if (w.key_dim % 16 != 0 || w.key_dim > 256 ||
      w.value_heads % w.key_heads != 0) {
    throw InvalidArgument(
        "[kernels.gdn] key width " + std::to_string(w.key_dim) + ", " +
        std::to_string(w.key_heads) + " key and " +
        std::to_string(w.value_heads) +
        " value heads, expected a multiple of 16 up to 256 and whole groups");
  }
}

/** conv, delta and, with `output`, y after the first n rows. */
std::vector<array> body(
    const array& proj,
    int n,
    bool output,
    const GdnStates& states,
    const GdnWeights& w,
    mx::StreamOrDevice s) {
  std::vector<mx::Shape> shapes = {states.conv.shape(), states.delta.shape()};
  std::vector<mx::Dtype> dtypes = {proj.dtype(), mx::float32};
  if (output) {
    shapes.push_back({n, w.value_heads * w.value_dim});
    dtypes.push_back(proj.dtype());
  }
  auto bind =
      [w, n, output](const std::vector<array>& in, std::vector<array>& out) {
        return bind_gdn(w, n, output, in, out);
      };
  return cpu_node(
      "gdn",
      bind,
      {proj,
       states.conv,
       states.delta,
       w.taps,
       w.decay_rate,
       w.dt_bias,
       w.norm},
      shapes,
      dtypes,
      s);
}

TemplateArgs text_args(const array& proj, const GdnWeights& w) {
  return {
      {"T", proj.dtype()},
      {"HK", w.key_heads},
      {"HV", w.value_heads},
      {"DK", w.key_dim},
      {"DV", w.value_dim}};
}

/** q k v g beta of the rows, and the convolution's state before them. */
std::vector<array> text_inputs(
    const array& proj,
    const GdnStates& states,
    const GdnWeights& w,
    mx::StreamOrDevice s) {
  auto args = text_args(proj, w);
  args.emplace_back("CONV", w.taps.shape(0));
  return text_node(
      "gdn_inputs",
      args,
      {proj,
       states.waiting.empty() ? proj : states.waiting[0],
       scalar(states.keep),
       states.conv,
       w.taps,
       w.decay_rate,
       w.dt_bias},
      s);
}

/** The convolution's state after the first n rows behind `conv`. */
array conv_after(
    const array& conv,
    const array& proj,
    int n,
    mx::StreamOrDevice s) {
  const int kept = conv.shape(0), channels = conv.shape(1);
  if (n >= kept) {
    return mx::slice(proj, {n - kept, 0}, {n, channels}, s);
  }
  return mx::concatenate(
      {mx::slice(conv, {n, 0}, {kept, channels}, s),
       mx::slice(proj, {0, 0}, {n, channels}, s)},
      0,
      s);
}

/** At most kTextRows rows, which wait behind the states handed out. */
std::pair<array, GdnStates> text_window(
    const array& proj,
    const GdnStates& states,
    const GdnWeights& w,
    mx::StreamOrDevice s) {
  auto made = text_inputs(proj, states, w, s); // q k v g beta tail
  const int n = proj.shape(0);
  std::vector<array> inputs(made.begin(), made.begin() + 5);
  inputs.insert(inputs.end(), {proj, w.norm, scalar(w.eps), states.delta});
  const bool waits = !states.waiting.empty();
  for (int i = 1; i < 5; ++i) { // k v g beta
    inputs.push_back(waits ? states.waiting[i] : made[i]);
  }
  inputs.insert(inputs.end(), {scalar(states.keep), scalar(n)});
  auto out = text_node("gdn_verify_rows", text_args(proj, w), inputs, s);
  return {
      out[0],
      {made[5], out[1], {proj, made[1], made[2], made[3], made[4]}, n}};
}

GdnOutput text_gdn(
    const array& proj,
    const GdnStates& from,
    const GdnWeights& w,
    mx::StreamOrDevice s) {
  const int n = proj.shape(0);
  if (n <= kMostTextRows) {
    std::vector<array> y;
    GdnOutput out{proj, from, {}};
    for (int begin = 0; begin < n; begin += kTextRows) {
      const int end = std::min(begin + kTextRows, n);
      auto part =
          text_window(rows_between(proj, begin, end, s), out.states, w, s);
      y.push_back(part.first);
      out.states = part.second;
      out.before.push_back(part.second);
    }
    out.y = y.size() == 1 ? y[0] : mx::concatenate(y, 0, s);
    return out;
  }
  const auto states = gdn_settled(from, w, s);
  auto made = text_inputs(proj, states, w, s);
  std::vector<array> inputs(made.begin(), made.begin() + 5);
  inputs.insert(inputs.end(), {states.delta, scalar(n)});
  const auto args = text_args(proj, w);
  auto out = text_node("gdn_step", args, inputs, s);
  auto y =
      text_node("gdn_norm", args, {out[0], proj, w.norm, scalar(w.eps)}, s);
  return {y[0], {conv_after(states.conv, proj, n, s), out[1], {}, 0}, {}};
}

} // namespace

GdnOutput gdn(
    const array& proj,
    const GdnStates& states,
    const GdnWeights& w,
    mx::StreamOrDevice s) {
  check(proj, states, w);
  if (runs_text(s)) {
    return text_gdn(proj, states, w, s);
  }
  const auto from = gdn_settled(states, w, s);
  const int n = proj.shape(0);
  auto out = body(proj, n, true, from, w, s);
  return {
      out[2],
      {out[0], out[1], {}, 0},
      {{from.conv, from.delta, {proj}, n}}};
}

GdnStates gdn_commit(
    const std::vector<GdnStates>& before,
    int keep,
    const GdnWeights& w,
    mx::StreamOrDevice s) {
  for (GdnStates part : before) {
    const int n = part.waiting[0].shape(0);
    if (0 <= keep && keep <= n) {
      part.keep = keep;
      return runs_text(s) ? part : gdn_settled(part, w, s);
    }
    keep -= n;
  }
  throw InvalidArgument(
      "[kernels.gdn_commit] keep, expected 0 to the rows of the window");
}

GdnStates gdn_settled(
    const GdnStates& states,
    const GdnWeights& w,
    mx::StreamOrDevice s) {
  if (states.waiting.empty()) {
    return states;
  }
  const array& proj = states.waiting[0];
  if (!runs_text(s)) {
    auto out = body(proj, states.keep, false, states, w, s);
    return {out[0], out[1], {}, 0};
  }
  if (states.keep == 0) {
    return {states.conv, states.delta, {}, 0};
  }
  std::vector<array> rows; // k v g beta of the kept ones
  for (int i = 1; i < 5; ++i) {
    rows.push_back(rows_between(states.waiting[i], 0, states.keep, s));
  }
  auto out = text_node(
      "gdn_step",
      text_args(proj, w),
      {rows[0],
       rows[0],
       rows[1],
       rows[2],
       rows[3],
       states.delta,
       scalar(states.keep)},
      s);
  return {conv_after(states.conv, proj, states.keep, s), out[1], {}, 0};
}

} // namespace qwenmtp::kernels
