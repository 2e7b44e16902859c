#include "kernels/hyper.h"

#include <mlx/ops.h>

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

struct Form {
  bool write;
  bool read;
  bool inject;
  int streams;
  float eps;
  MatrixForm low, up;
};

/** Inputs x, [y, inject], [norm, low, up]; outputs [x], [mix, [inject]]. */
std::function<void()> bind_hyper(
    const Form& form,
    const std::vector<array>& in,
    std::vector<array>& out) {
  cpu::HyperCall call{};
  call.type = type_of(in[0]);
  call.n_rows = in[0].shape(0);
  call.streams = form.streams;
  call.hidden = in[0].shape(1) / form.streams;
  call.eps = form.eps;
  call.x = rows_of(in[0]);
  size_t at = 1, to = 0;
  if (form.write) {
    call.y = rows_of(in[at++]);
    call.inject = rows_of(in[at++]);
    call.x_out = out_rows_of(out[to++]);
  }
  if (form.read) {
    call.norm = vector_of(in[at++]);
    const auto low = weights_of(in, at, form.low);
    call.gates[0] = part_of(low, 0, form.up.in);
    call.mix = out_rows_of(out[to++]);
    if (form.inject) {
      call.gates[1] = part_of(low, form.up.in, form.streams);
      call.inject_out = out_rows_of(out[to++]);
    }
    call.up = weights_of(in, at, form.up);
  }
  return [call, body = cpu::bodies().hyper] { body(call); };
}

void check_write(
    const array& x,
    const array& y,
    const array& inject,
    int streams) {
  check_shape("hyper_write", "y", y, {x.shape(0), x.shape(1) / streams});
  check_shape("hyper_write", "inject", inject, {x.shape(0), streams});
  check_dtype("hyper_write", "y", y, x.dtype());
  check_dtype("hyper_write", "inject", inject, x.dtype());
}

void check_read(const array& x, const HyperWeights& w) {
  const int wide = x.shape(1);
  check_shape("hyper", "norm", w.norm, {wide});
  check_matrix("hyper", w.up, wide, w.up.in());
  check_matrix("hyper", w.low, w.up.in() + 8, wide);
}

/** The read of streams whose norm z is there. */
HyperRead text_read(
    const array& z,
    const HyperWeights& w,
    mx::StreamOrDevice s) {
  auto low = text_product(z, w.low, w.up.in(), w.streams, s);
  const int n = z.shape(0);
  std::vector<array> mix, inject;
  for (int begin = 0; begin < n; begin += kTextRows) {
    const int end = std::min(begin + kTextRows, n);
    auto part = text_mix(
        rows_between(low, begin, end, s),
        rows_between(z, begin, end, s),
        w.up,
        w.streams,
        s);
    mix.push_back(part[0]);
    inject.push_back(part[1]);
  }
  auto joined = [&](const std::vector<array>& parts) {
    return parts.size() == 1 ? parts[0] : mx::concatenate(parts, 0, s);
  };
  return {
      joined(mix),
      w.has_inject ? std::optional<array>(joined(inject)) : std::nullopt};
}

TemplateArgs text_args(const array& x, int streams) {
  return {{"T", x.dtype()}, {"C", streams}, {"H", x.shape(1) / streams}};
}

std::vector<array> node(
    const array& x,
    const array* y,
    const array* inject,
    const HyperWeights* w,
    int streams,
    mx::StreamOrDevice s) {
  check_activation("hyper", x);
  check_shape("hyper", "x", x, {-1, -1});
  const int n = x.shape(0), wide = x.shape(1);
  Form form{
      y != nullptr,
      w != nullptr,
      w != nullptr && w->has_inject,
      streams,
      0,
      {},
      {}};
  std::vector<array> inputs = {x};
  std::vector<mx::Shape> shapes;
  if (y != nullptr) {
    check_write(x, *y, *inject, streams);
    inputs.push_back(*y);
    inputs.push_back(*inject);
    shapes.push_back(x.shape());
  }
  if (w != nullptr) {
    form.eps = w->eps;
    check_read(x, *w);
    inputs.push_back(w->norm);
    form.low = append(inputs, w->low);
    shapes.push_back({n, wide / streams});
    if (w->has_inject) {
      shapes.push_back({n, streams});
    }
    form.up = append(inputs, w->up);
  }
  auto bind = [form](const std::vector<array>& in, std::vector<array>& out) {
    return bind_hyper(form, in, out);
  };
  return cpu_node(
      "hyper",
      bind,
      inputs,
      shapes,
      std::vector<mx::Dtype>(shapes.size(), x.dtype()),
      s);
}

HyperRead read_of(const std::vector<array>& out, size_t at) {
  return {
      out[at],
      at + 1 < out.size() ? std::optional<array>(out[at + 1]) : std::nullopt};
}

} // namespace

HyperRead hyper_read(
    const array& x,
    const HyperWeights& w,
    mx::StreamOrDevice s) {
  if (runs_text(s)) {
    check_read(x, w);
    auto z = text_node(
        "hyper_norm",
        text_args(x, w.streams),
        {x, w.norm, scalar(w.eps)},
        s);
    return text_read(z[0], w, s);
  }
  return read_of(node(x, nullptr, nullptr, &w, w.streams, s), 0);
}

array hyper_write(
    const array& x,
    const array& y,
    const array& inject,
    mx::StreamOrDevice s) {
  if (runs_text(s)) { // once a forward: not worth a kernel of its own
    check_write(x, y, inject, inject.shape(-1));
    auto spread = mx::multiply(
        mx::expand_dims(inject, -1, s),
        mx::expand_dims(y, 1, s),
        s);
    return mx::add(x, mx::reshape(spread, x.shape(), s), s);
  }
  return node(x, &y, &inject, nullptr, inject.shape(-1), s)[0];
}

HyperWriteRead hyper_write_read(
    const array& x,
    const array& y,
    const array& inject,
    const HyperWeights& w,
    mx::StreamOrDevice s) {
  if (runs_text(s)) {
    check_write(x, y, inject, w.streams);
    check_read(x, w);
    auto out = text_node(
        "hyper_write",
        text_args(x, w.streams),
        {x, y, inject, w.norm, scalar(w.eps)},
        s);
    return {out[0], text_read(out[1], w, s)};
  }
  auto out = node(x, &y, &inject, &w, w.streams, s);
  return {out[0], read_of(out, 1)};
}

} // namespace qwenmtp::kernels
