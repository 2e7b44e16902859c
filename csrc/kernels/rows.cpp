#include "kernels/rows.h"

#include <string>

#include "base/error.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

template <typename Sizes>
std::string shape_text(const Sizes& shape) {
  std::string text = "[";
  for (int n : shape) {
    text += (text.size() > 1 ? ", " : "") +
            (n < 0 ? std::string("any") : std::to_string(n));
  }
  return text + "]";
}

bool affine_bits(int bits) {
  return bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 ||
         bits == 8;
}

} // namespace

int Matrix::out() const {
  return weight.shape(-2);
}

int Matrix::in() const {
  int columns = weight.shape(-1);
  return scales ? columns * 32 / bits : columns;
}

void check_shape(
    const char* where,
    const char* name,
    const array& a,
    std::initializer_list<int> shape) {
  bool same = a.ndim() == shape.size();
  int axis = 0;
  for (auto it = shape.begin(); same && it != shape.end(); ++it, ++axis) {
    same = *it < 0 || a.shape(axis) == *it;
  }
  if (!same) {
    throw InvalidArgument(
        std::string("[kernels.") + where + "] " + name + " " +
        shape_text(a.shape()) + ", expected " + shape_text(shape));
  }
}

void check_dtype(
    const char* where,
    const char* name,
    const array& a,
    mx::Dtype dtype) {
  if (a.dtype() != dtype) {
    throw InvalidArgument(
        std::string("[kernels.") + where + "] " + name +
        " of another dtype than expected");
  }
}

void check_activation(const char* where, const array& a) {
  if (a.dtype() != mx::float32 && a.dtype() != mx::bfloat16) {
    throw InvalidArgument(
        std::string("[kernels.") + where +
        "] activations of another dtype, expected float32 or bfloat16");
  }
}

void check_matrix(
    const char* where,
    const Matrix& m,
    int out,
    int in,
    int stack) {
  auto check = [&](const char* name, const array& a, int last) {
    if (stack > 0) {
      check_shape(where, name, a, {stack, out, last});
    } else {
      check_shape(where, name, a, {out, last});
    }
  };
  if (!m.scales) {
    check("weight", m.weight, in);
    type_of(m.weight);
    return;
  }
  const std::string room = std::string("[kernels.") + where + "] ";
  if (!m.biases || !affine_bits(m.bits) ||
      (m.group != 32 && m.group != 64 && m.group != 128) || in % m.group != 0) {
    throw InvalidArgument(
        room + std::to_string(m.bits) + " bits in groups of " +
        std::to_string(m.group) + " over " + std::to_string(in) +
        " columns, expected 2, 3, 4, 5, 6 or 8 bits in whole groups of 32, 64 "
        "or 128");
  }
  if (m.weight.dtype() != mx::uint32 ||
      m.scales->dtype() != m.biases->dtype() ||
      (m.scales->dtype() != mx::float32 && m.scales->dtype() != mx::bfloat16)) {
    throw InvalidArgument(
        room +
        "quantised matrix of other dtypes, expected uint32 codes with "
        "float32 or bfloat16 scales and biases");
  }
  check("codes", m.weight, in * m.bits / 32);
  check("scales", *m.scales, in / m.group);
  check("biases", *m.biases, in / m.group);
}

MatrixForm append(std::vector<array>& inputs, const Matrix& m) {
  inputs.push_back(m.weight);
  if (m.scales) {
    inputs.push_back(*m.scales);
    inputs.push_back(*m.biases);
    return {m.out(), m.in(), m.bits, m.group};
  }
  return {m.out(), m.in(), 0, 0};
}

cpu::Weights weights_of(
    const std::vector<array>& inputs,
    size_t& at,
    const MatrixForm& form) {
  const array& weight = inputs[at++];
  auto stack_stride = [](const array& a) {
    return a.ndim() > 2 ? a.strides(0) : 0;
  };
  auto stride = [](const array& a) {
    return a.shape(-2) > 1 ? a.strides(-2) : a.shape(-1);
  };
  auto contiguous = [](const array& a) {
    return a.shape(-1) == 1 || a.strides(-1) == 1;
  };
  cpu::Weights w;
  w.data = weight.data<char>();
  w.row_bytes = stride(weight) * weight.itemsize();
  w.stack_bytes = stack_stride(weight) * weight.itemsize();
  w.out = form.out;
  w.in = form.in;
  bool rows_contiguous = contiguous(weight);
  if (form.bits != 0) {
    const array& scales = inputs[at++];
    const array& biases = inputs[at++];
    w.scales = scales.data<char>();
    w.biases = biases.data<char>();
    w.scale_row = stride(scales);
    w.scale_stack = stack_stride(scales);
    w.bits = form.bits;
    w.group = form.group;
    w.type = type_of(scales);
    rows_contiguous = rows_contiguous && contiguous(scales) &&
                      contiguous(biases) && stride(scales) == stride(biases) &&
                      stack_stride(scales) == stack_stride(biases);
  } else {
    w.type = type_of(weight);
  }
  if (!rows_contiguous) {
    throw InternalError("[kernels.weights_of] matrix rows are not contiguous");
  }
  return w;
}

cpu::Weights part_of(cpu::Weights w, int begin, int n) {
  auto moved = [&](const void*& p, int64_t bytes) {
    p = p == nullptr ? p : static_cast<const char*>(p) + begin * bytes;
  };
  const int64_t scale_bytes =
      w.scale_row * (w.type == cpu::Type::f32 ? sizeof(float) : sizeof(short));
  moved(w.data, w.row_bytes);
  moved(w.scales, scale_bytes);
  moved(w.biases, scale_bytes);
  w.out = n;
  return w;
}

std::vector<array> rows(
    const array& x,
    const std::vector<Matrix>& matrices,
    mx::StreamOrDevice s) {
  check_activation("rows", x);
  check_shape("rows", "x", x, {-1, -1});
  if (matrices.empty() || matrices.size() > cpu::kMaxMatrices) {
    throw InvalidArgument(
        "[kernels.rows] " + std::to_string(matrices.size()) +
        " matrices, expected 1 to " + std::to_string(cpu::kMaxMatrices));
  }
  std::vector<array> inputs = {x};
  std::vector<mx::Shape> shapes;
  std::vector<MatrixForm> forms;
  for (const Matrix& m : matrices) {
    check_matrix("rows", m, m.out(), x.shape(1));
    forms.push_back(append(inputs, m));
    shapes.push_back({x.shape(0), m.out()});
  }
  if (runs_text(s)) {
    std::vector<array> y;
    for (const Matrix& m : matrices) {
      y.push_back(text_product(x, m, 0, 1, s));
    }
    return y;
  }
  auto bind = [forms](const std::vector<array>& in, std::vector<array>& out) {
    cpu::RowsCall call{};
    call.type = type_of(in[0]);
    call.n_rows = in[0].shape(0);
    call.n_matrices = forms.size();
    call.x = rows_of(in[0]);
    size_t at = 1;
    for (size_t i = 0; i < forms.size(); ++i) {
      call.weights[i] = weights_of(in, at, forms[i]);
      call.y[i] = out_rows_of(out[i]);
    }
    return [call, body = cpu::bodies().rows] { body(call); };
  };
  return cpu_node(
      "rows",
      bind,
      inputs,
      shapes,
      std::vector<mx::Dtype>(matrices.size(), x.dtype()),
      s);
}

} // namespace qwenmtp::kernels
