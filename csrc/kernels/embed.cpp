#include "kernels/embed.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

array embed(
    const array& ids,
    const Matrix& table,
    int copies,
    mx::Dtype dtype,
    mx::StreamOrDevice s) {
  check_shape("embed", "ids", ids, {-1});
  check_dtype("embed", "ids", ids, mx::int32);
  check_matrix("embed", table, table.out(), table.in());
  std::vector<array> inputs = {ids};
  const MatrixForm form = append(inputs, table);
  if (runs_text(s)) {
    TemplateArgs args = {
        {"T", dtype},
        {"W", (table.scales ? *table.scales : table.weight).dtype()},
        {"IN", table.in()}};
    if (table.scales) {
      args.emplace_back("BITS", table.bits);
      args.emplace_back("GROUP", table.group);
    }
    args.emplace_back("COPIES", copies);
    const char* name = table.scales ? "embed_affine" : "embed_dense";
    return text_node(name, args, inputs, s)[0];
  }
  auto bind = [form, copies](
                  const std::vector<array>& in,
                  std::vector<array>& out) -> std::function<void()> {
    size_t at = 1;
    const cpu::EmbedCall call{
        type_of(out[0]),
        in[0].shape(0),
        copies,
        in[0].data<int32_t>(),
        weights_of(in, at, form),
        out[0].data<void>()};
    return [call, body = cpu::bodies().embed] { body(call); };
  };
  const mx::Shape shape = {ids.shape(0), copies * table.in()};
  return cpu_node("embed", bind, inputs, {shape}, {dtype}, s)[0];
}

} // namespace qwenmtp::kernels
