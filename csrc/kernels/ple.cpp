#include "kernels/ple.h"

#include "kernels/rows.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

PleOutput ple(
    const array& x,
    const array& key,
    const array& value,
    const array& conv,
    const PleWeights& w,
    mx::StreamOrDevice s) {
  check_activation("ple", x);
  check_shape("ple", "x", x, {-1, -1});
  const int n = x.shape(0), wide = x.shape(1), kernel = w.taps.shape(0);
  check_shape("ple", "key", key, {n, wide});
  check_shape("ple", "value", value, {n, wide / w.streams});
  check_shape("ple", "conv", conv, {(kernel - 1) * w.dilation, wide});
  check_shape("ple", "norm_key", w.norm_key, {wide});
  check_shape("ple", "norm_query", w.norm_query, {wide});
  check_shape("ple", "norm_conv", w.norm_conv, {wide});
  check_shape("ple", "taps", w.taps, {kernel, wide});
  for (const array* a : {&key, &value, &conv}) {
    check_dtype("ple", "inputs", *a, x.dtype());
  }
  if (runs_text(s)) {
    auto gate = text_node(
        "ple_gate",
        {{"T", x.dtype()}, {"C", w.streams}, {"H", wide / w.streams}},
        {key, value, x, w.norm_key, w.norm_query, w.norm_conv, scalar(w.eps)},
        s);
    auto out = text_node(
        "ple_conv",
        {{"T", x.dtype()}, {"W", wide}, {"TAPS", kernel}, {"DIL", w.dilation}},
        {gate[0], gate[1], scalar(n), conv, w.taps},
        s);
    return {out[0], gate[1], out[1]};
  }
  auto bind = [streams = w.streams, dilation = w.dilation, eps = w.eps](
                  const std::vector<array>& in,
                  std::vector<array>& out) {
    cpu::PleCall call{};
    call.type = type_of(in[0]);
    call.n_rows = in[0].shape(0);
    call.streams = streams;
    call.hidden = in[0].shape(1) / streams;
    call.kernel = in[7].shape(0);
    call.dilation = dilation;
    call.eps = eps;
    call.x = rows_of(in[0]);
    call.key = rows_of(in[1]);
    call.value = rows_of(in[2]);
    call.conv = rows_of(in[3]);
    call.norm_key = vector_of(in[4]);
    call.norm_query = vector_of(in[5]);
    call.norm_conv = vector_of(in[6]);
    call.taps = vector_of(in[7]);
    call.added = out_rows_of(out[0]);
    call.normed = out_rows_of(out[1]);
    call.conv_out = out_rows_of(out[2]);
    return [call, body = cpu::bodies().ple] { body(call); };
  };
  auto out = cpu_node(
      "ple",
      bind,
      {x, key, value, conv, w.norm_key, w.norm_query, w.norm_conv, w.taps},
      {x.shape(), x.shape(), conv.shape()},
      std::vector<mx::Dtype>(3, x.dtype()),
      s);
  return {out[0], out[1], out[2]};
}

} // namespace qwenmtp::kernels
