#include "kernels/hyper.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

struct Form {
  bool write;
  bool read;
  bool inject;
  int streams;
  float eps;
  MatrixForm down, gates, up;
};

/** Inputs x, [y, inject], [norm, down, [inject matrix], up]; outputs [x], [mix,
 * [inject]]. */
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
    call.gates[0] = weights_of(in, at, form.down);
    call.mix = out_rows_of(out[to++]);
    if (form.inject) {
      call.gates[1] = weights_of(in, at, form.gates);
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
      w != nullptr && w->inject,
      streams,
      0,
      {},
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
    check_shape("hyper", "norm", w->norm, {wide});
    check_matrix("hyper", w->down, w->down.out(), wide);
    check_matrix("hyper", w->up, wide, w->down.out());
    inputs.push_back(w->norm);
    form.down = append(inputs, w->down);
    shapes.push_back({n, wide / streams});
    if (w->inject) {
      check_matrix("hyper", *w->inject, streams, wide);
      form.gates = append(inputs, *w->inject);
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
  return read_of(node(x, nullptr, nullptr, &w, w.streams, s), 0);
}

array hyper_write(
    const array& x,
    const array& y,
    const array& inject,
    mx::StreamOrDevice s) {
  return node(x, &y, &inject, nullptr, inject.shape(-1), s)[0];
}

HyperWriteRead hyper_write_read(
    const array& x,
    const array& y,
    const array& inject,
    const HyperWeights& w,
    mx::StreamOrDevice s) {
  auto out = node(x, &y, &inject, &w, w.streams, s);
  return {out[0], read_of(out, 1)};
}

} // namespace qwenmtp::kernels
