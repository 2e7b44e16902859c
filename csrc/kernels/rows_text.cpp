/** Launches of metal/rows.metal: which kernel, which template arguments. */
#include <string>

#include <mlx/ops.h>

#include "kernels/rows.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

/** "rows_x_affine" or "rows_x_dense". */
std::string kernel_of(const char* what, const Matrix& m) {
  return std::string(what) + (m.scales ? "_affine" : "_dense");
}

/** Lanes that share an output: they fix the order of a sum, so they depend on
 * the input's width alone. */
int lanes_of(const Matrix& m) {
  const int chunks = m.in() / (m.scales ? 32 : 8);
  const int power = std::min(32, chunks & -chunks);
  return power < 4 ? 32 : power;
}

/** Simdgroups that share an output where there are too few outputs to fill a
 * GPU. */
int split_of(const Matrix& m) {
  return m.out() <= 1024 && m.in() >= 2048 ? 4 : 1;
}

TemplateArgs types_of(const array& x, const Matrix& m, int n_rows) {
  return {
      {"T", x.dtype()},
      {"W", (m.scales ? *m.scales : m.weight).dtype()},
      {"ROWS", n_rows}};
}

void add_form(TemplateArgs& args, const Matrix& m) {
  if (m.scales) {
    args.emplace_back("BITS", m.bits);
    args.emplace_back("GROUP", m.group);
  }
  args.emplace_back("LANES", lanes_of(m));
}

array window(
    const array& x,
    const Matrix& m,
    int n_silu,
    int divisor,
    mx::StreamOrDevice s) {
  auto args = types_of(x, m, x.shape(0));
  args.emplace_back("IN", m.in());
  args.emplace_back("OUT", m.out());
  add_form(args, m);
  args.emplace_back("SPLIT", split_of(m));
  args.emplace_back("OUTS", m.scales && m.out() >= 4096 ? 4 : 1);
  args.emplace_back("SILU", n_silu);
  args.emplace_back("DIV", divisor);
  std::vector<array> inputs = {x};
  append(inputs, m);
  return text_node(kernel_of("rows", m), args, inputs, s)[0];
}

/** The product of many rows; the activation as its own operations. */
array stock_product(
    const array& x,
    const Matrix& m,
    int n_silu,
    int divisor,
    mx::StreamOrDevice s) {
  auto y = m.scales ? mx::quantized_matmul(
                          x,
                          m.weight,
                          mx::astype(*m.scales, x.dtype(), s),
                          mx::astype(*m.biases, x.dtype(), s),
                          true,
                          m.group,
                          m.bits,
                          "affine",
                          s)
                    : mx::matmul(
                          x,
                          mx::transpose(mx::astype(m.weight, x.dtype(), s), s),
                          s);
  if (divisor != 1) {
    y = mx::divide(y, mx::array(static_cast<float>(divisor), x.dtype()), s);
  }
  if (n_silu == 0) {
    return y;
  }
  const int n = y.shape(0);
  auto active = mx::slice(y, {0, 0}, {n, n_silu}, s);
  auto plain = mx::slice(y, {0, n_silu}, {n, y.shape(1)}, s);
  active = mx::multiply(active, mx::sigmoid(active, s), s);
  return mx::concatenate({active, plain}, 1, s);
}

} // namespace

array rows_between(const array& x, int begin, int end, mx::StreamOrDevice s) {
  if (begin == 0 && end == x.shape(0)) {
    return x;
  }
  mx::Shape start(x.ndim(), 0);
  mx::Shape stop = x.shape();
  start[0] = begin;
  stop[0] = end;
  return mx::slice(x, start, stop, s);
}

array text_product(
    const array& x,
    const Matrix& m,
    int n_silu,
    int divisor,
    mx::StreamOrDevice s) {
  const int n = x.shape(0);
  if (n > kMostTextRows) {
    return stock_product(x, m, n_silu, divisor, s);
  }
  std::vector<array> parts;
  for (int begin = 0; begin < n; begin += kTextRows) {
    const int end = std::min(begin + kTextRows, n);
    parts.push_back(
        window(rows_between(x, begin, end, s), m, n_silu, divisor, s));
  }
  return parts.size() == 1 ? parts[0] : mx::concatenate(parts, 0, s);
}

array text_glu(
    const array& x,
    const Matrix& gate,
    const Matrix& up,
    mx::StreamOrDevice s) {
  auto args = types_of(x, gate, x.shape(0));
  args.emplace_back("IN", gate.in());
  args.emplace_back("OUT", gate.out());
  add_form(args, gate);
  args.emplace_back("OUTS", 1);
  std::vector<array> inputs = {x};
  append(inputs, gate);
  append(inputs, up);
  return text_node(kernel_of("rows_glu", gate), args, inputs, s)[0];
}

std::vector<array> text_mix(
    const array& low,
    const array& z,
    const Matrix& up,
    int streams,
    mx::StreamOrDevice s) {
  auto args = types_of(z, up, z.shape(0));
  args.emplace_back("R", up.in());
  args.emplace_back("H", up.out() / streams);
  args.emplace_back("C", streams);
  add_form(args, up);
  std::vector<array> inputs = {low, z};
  append(inputs, up);
  return text_node(kernel_of("rows_mix", up), args, inputs, s);
}

namespace {

TemplateArgs gather_args(const array& x, const array& expert, const Matrix& m) {
  auto args = types_of(x, m, expert.shape(0));
  args.emplace_back("K", expert.shape(1));
  args.emplace_back("IN", m.in());
  args.emplace_back("OUT", m.out());
  add_form(args, m);
  args.emplace_back("OUTS", 2);
  return args;
}

} // namespace

array text_gather_glu(
    const array& x,
    const array& expert,
    const array& order,
    const Matrix& gate,
    const Matrix& up,
    mx::StreamOrDevice s) {
  std::vector<array> inputs = {x, expert, order};
  append(inputs, gate);
  append(inputs, up);
  return text_node(
      kernel_of("rows_gather_glu", gate),
      gather_args(x, expert, gate),
      inputs,
      s)[0];
}

array text_gather(
    const array& x,
    const array& expert,
    const array& order,
    const array& weight,
    const Matrix& m,
    mx::StreamOrDevice s) {
  std::vector<array> inputs = {x, expert, order, weight};
  append(inputs, m);
  return text_node(
      kernel_of("rows_gather", m),
      gather_args(x, expert, m),
      inputs,
      s)[0];
}

} // namespace qwenmtp::kernels
