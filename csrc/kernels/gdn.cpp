#include "kernels/gdn.h"

#include "base/error.h"
#include "kernels/rows.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

struct Form {
  int n_rows, key_heads, value_heads, key_dim, value_dim;
  float eps;
  bool output;
};

std::function<void()> bind_gdn(
    const Form& form,
    const std::vector<array>& in,
    std::vector<array>& out) {
  cpu::GdnCall call{};
  call.type = type_of(in[0]);
  call.n_rows = form.n_rows;
  call.key_heads = form.key_heads;
  call.value_heads = form.value_heads;
  call.key_dim = form.key_dim;
  call.value_dim = form.value_dim;
  call.kernel = in[5].shape(0);
  call.eps = form.eps;
  call.qkv = rows_of(in[0]);
  call.a = rows_of(in[1]);
  call.b = rows_of(in[2]);
  call.conv = rows_of(in[3]);
  call.delta = static_cast<const float*>(vector_of(in[4]).data);
  call.taps = vector_of(in[5]);
  call.decay_rate = vector_of(in[6]);
  call.dt_bias = vector_of(in[7]);
  call.norm = vector_of(in[8]);
  call.conv_out = out_rows_of(out[0]);
  call.delta_out = out[1].data<float>();
  if (form.output) {
    call.z = rows_of(in[9]);
    call.y = out_rows_of(out[2]);
  }
  return [call, body = cpu::bodies().gdn] { body(call); };
}

std::vector<array> node(
    const GdnRows& rows,
    const array* z,
    int n,
    const GdnStates& states,
    const GdnWeights& w,
    mx::StreamOrDevice s) {
  const int channels =
      2 * w.key_heads * w.key_dim + w.value_heads * w.value_dim;
  const int kernel = w.taps.shape(0);
  const mx::Dtype dtype = rows.qkv.dtype();
  check_activation("gdn", rows.qkv);
  check_shape("gdn", "qkv", rows.qkv, {-1, channels});
  check_shape("gdn", "a", rows.a, {rows.qkv.shape(0), w.value_heads});
  check_shape("gdn", "b", rows.b, {rows.qkv.shape(0), w.value_heads});
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
  check_dtype("gdn", "a", rows.a, dtype);
  check_dtype("gdn", "b", rows.b, dtype);
  check_dtype("gdn", "conv", states.conv, dtype);
  check_dtype("gdn", "delta", states.delta, mx::float32);
  if (w.key_dim % 16 != 0 || w.key_dim > 256 ||
      w.value_heads % w.key_heads != 0) {
    throw InvalidArgument(
        "[kernels.gdn] key width " + std::to_string(w.key_dim) + ", " +
        std::to_string(w.key_heads) + " key and " +
        std::to_string(w.value_heads) +
        " value heads, expected a multiple of 16 up to 256 and whole groups");
  }
  std::vector<array> inputs = {
      rows.qkv,
      rows.a,
      rows.b,
      states.conv,
      states.delta,
      w.taps,
      w.decay_rate,
      w.dt_bias,
      w.norm};
  std::vector<mx::Shape> shapes = {states.conv.shape(), states.delta.shape()};
  std::vector<mx::Dtype> dtypes = {dtype, mx::float32};
  if (z != nullptr) {
    check_shape("gdn", "z", *z, {n, w.value_heads * w.value_dim});
    check_dtype("gdn", "z", *z, dtype);
    inputs.push_back(*z);
    shapes.push_back({n, w.value_heads * w.value_dim});
    dtypes.push_back(dtype);
  }
  const Form form{
      n,
      w.key_heads,
      w.value_heads,
      w.key_dim,
      w.value_dim,
      w.eps,
      z != nullptr};
  auto bind = [form](const std::vector<array>& in, std::vector<array>& out) {
    return bind_gdn(form, in, out);
  };
  return cpu_node("gdn", bind, inputs, shapes, dtypes, s);
}

} // namespace

GdnOutput gdn(
    const GdnRows& rows,
    const array& z,
    const GdnStates& states,
    const GdnWeights& w,
    mx::StreamOrDevice s) {
  auto out = node(rows, &z, rows.qkv.shape(0), states, w, s);
  return {out[2], {out[0], out[1]}};
}

GdnStates gdn_commit(
    const GdnRows& rows,
    int keep,
    const GdnStates& states,
    const GdnWeights& w,
    mx::StreamOrDevice s) {
  if (keep < 0 || keep > rows.qkv.shape(0)) {
    throw InvalidArgument(
        "[kernels.gdn_commit] keep " + std::to_string(keep) + " of " +
        std::to_string(rows.qkv.shape(0)) + " rows");
  }
  auto out = node(rows, nullptr, keep, states, w, s);
  return {out[0], out[1]};
}

} // namespace qwenmtp::kernels
