#include "kernels/norm.h"

#include "kernels/rows.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

array rms_norm(
    const array& x,
    const array& weight,
    float eps,
    mx::StreamOrDevice s) {
  check_activation("rms_norm", x);
  check_shape("rms_norm", "x", x, {-1, -1});
  check_shape("rms_norm", "weight", weight, {x.shape(1)});
  if (runs_text(s)) {
    const TemplateArgs one_group = {
        {"T", x.dtype()},
        {"C", 1},
        {"H", x.shape(1)}};
    return text_node("hyper_norm", one_group, {x, weight, scalar(eps)}, s)[0];
  }
  auto bind = [eps](const std::vector<array>& in, std::vector<array>& out) {
    const cpu::NormCall call{
        type_of(in[0]),
        in[0].shape(0),
        in[0].shape(1),
        eps,
        rows_of(in[0]),
        vector_of(in[1]),
        out_rows_of(out[0])};
    return [call, body = cpu::bodies().norm] { body(call); };
  };
  return cpu_node("norm", bind, {x, weight}, {x.shape()}, {x.dtype()}, s)[0];
}

} // namespace qwenmtp::kernels
