#include "kernels/qsa.h"

#include "base/error.h"
#include "kernels/qsa_text.h"
#include "kernels/rows.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

struct Form {
  int heads, kv_heads, index_heads, ratio, budget_blocks, first;
  float eps;
};

Form form_of(const QsaWeights& w, int first) {
  return {
      w.heads,
      w.kv_heads,
      w.index_heads,
      w.ratio,
      w.budget_blocks,
      first,
      w.eps};
}

const float* floats_of(const array& a) {
  return static_cast<const float*>(vector_of(a).data);
}

/** Inputs proj, index, raw_tail, cos, sin, block cos, block sin, norms. */
std::function<void()> bind_prepare(
    const Form& form,
    const std::vector<array>& in,
    std::vector<array>& out) {
  cpu::QsaPrepareCall call{};
  call.type = type_of(in[0]);
  call.n_rows = in[0].shape(0);
  call.n_blocks = out[3].shape(0);
  call.heads = form.heads;
  call.kv_heads = form.kv_heads;
  call.head_dim = in[7].shape(0);
  call.index_heads = form.index_heads;
  call.index_dim = in[2].shape(1);
  call.ratio = form.ratio;
  call.half = in[3].shape(1);
  call.tail = in[2].shape(0);
  call.eps = form.eps;
  const int values = form.kv_heads * call.head_dim;
  call.k = rows_of(in[0]);
  call.v = columns_of(in[0], values);
  call.index = rows_of(in[1]);
  call.raw_tail = rows_of(in[2]);
  call.cos = floats_of(in[3]);
  call.sin = floats_of(in[4]);
  call.block_cos = floats_of(in[5]);
  call.block_sin = floats_of(in[6]);
  call.q_norm = vector_of(in[7]);
  call.k_norm = vector_of(in[8]);
  call.index_q_norm = vector_of(in[9]);
  call.index_k_norm = vector_of(in[10]);
  call.k_out = out[0].data<char>();
  call.v_out = out[1].data<char>();
  call.raw = out[2].data<char>();
  call.pooled = out[3].data<char>();
  if (out.size() > 4) {
    call.q_gate = columns_of(in[0], 2 * values);
    call.q = out[4].data<char>();
    call.index_q = out[5].data<char>();
  }
  return [call, body = cpu::bodies().qsa_prepare] { body(call); };
}

std::function<void()> bind_attend(
    const Form& form,
    const std::vector<array>& in,
    std::vector<array>& out) {
  const array& keys = in[3];
  const array& values = in[4];
  if (keys.strides(2) != 1 || values.strides(2) != 1) {
    throw InternalError("[kernels.qsa_attend] cache rows are not contiguous");
  }
  cpu::QsaAttendCall call{};
  call.type = type_of(in[0]);
  call.n_rows = in[0].shape(0);
  call.first = form.first;
  call.heads = form.heads;
  call.kv_heads = form.kv_heads;
  call.head_dim = keys.shape(2);
  call.index_heads = form.index_heads;
  call.index_dim = in[5].shape(1);
  call.ratio = form.ratio;
  call.budget_blocks = form.budget_blocks;
  call.q = rows_of(in[0]);
  call.q_gate = columns_of(in[1], 2 * form.kv_heads * keys.shape(2));
  call.index_q = rows_of(in[2]);
  call.keys = keys.data<char>();
  call.values = values.data<char>();
  call.key_head = keys.strides(0);
  call.value_head = values.strides(0);
  call.key_row = keys.strides(1);
  call.value_row = values.strides(1);
  call.pooled = rows_of(in[5]);
  call.y = out_rows_of(out[0]);
  call.blocks = out[1].data<int32_t>();
  return [call, body = cpu::bodies().qsa_attend] { body(call); };
}

void check_rope(const char* name, const QsaRope& rope, int rows, int half) {
  check_shape("qsa_prepare", name, rope.cos, {rows, half});
  check_shape("qsa_prepare", name, rope.sin, {rows, half});
  check_dtype("qsa_prepare", name, rope.cos, mx::float32);
  check_dtype("qsa_prepare", name, rope.sin, mx::float32);
}

} // namespace

QsaPrepared qsa_prepare(
    const QsaRows& rows,
    const array& raw_tail,
    const QsaRope& at,
    const QsaRope& blocks,
    const QsaWeights& w,
    mx::StreamOrDevice s) {
  const char* where = "qsa_prepare";
  const int n = rows.proj.shape(0);
  const int dim = w.q_norm.shape(0), index_dim = w.index_q_norm.shape(0);
  const int tail = raw_tail.shape(0), half = at.cos.shape(-1);
  const mx::Dtype dtype = rows.proj.dtype();
  const bool asks = rows.proj.shape(-1) != 2 * w.kv_heads * dim;
  check_activation(where, rows.proj);
  check_shape(
      where,
      "proj",
      rows.proj,
      {n, 2 * (w.kv_heads + (asks ? w.heads : 0)) * dim});
  check_shape(where, "index", rows.index, {n, (w.index_heads + 1) * index_dim});
  check_shape(where, "raw_tail", raw_tail, {-1, index_dim});
  check_shape(where, "k_norm", w.k_norm, {dim});
  check_shape(where, "index_k_norm", w.index_k_norm, {index_dim});
  for (const array* a : {&rows.index, &raw_tail}) {
    check_dtype(where, "rows", *a, dtype);
  }
  if (tail >= w.ratio || 2 * half > dim || 2 * half > index_dim) {
    throw InvalidArgument(
        "[kernels.qsa_prepare] " + std::to_string(tail) + " raw rows, " +
        std::to_string(half) +
        " angles, expected less than a block and at most half a head");
  }
  const int n_blocks = (tail + n) / w.ratio;
  check_rope("at", at, n, half);
  check_rope("blocks", blocks, n_blocks, half);
  if (runs_text(s)) {
    return qsa_text_prepare(rows, raw_tail, at, blocks, w, asks, s);
  }
  std::vector<array> inputs = {
      rows.proj,
      rows.index,
      raw_tail,
      at.cos,
      at.sin,
      blocks.cos,
      blocks.sin,
      w.q_norm,
      w.k_norm,
      w.index_q_norm,
      w.index_k_norm};
  std::vector<mx::Shape> shapes = {
      {w.kv_heads, n, dim},
      {w.kv_heads, n, dim},
      {n, index_dim},
      {n_blocks, index_dim}};
  if (asks) {
    shapes.push_back({n, w.heads * dim});
    shapes.push_back({n, w.index_heads * index_dim});
  }
  auto bind = [form = form_of(w, 0)](
                  const std::vector<array>& in,
                  std::vector<array>& out) {
    return bind_prepare(form, in, out);
  };
  auto out = cpu_node(
      where,
      bind,
      inputs,
      shapes,
      std::vector<mx::Dtype>(shapes.size(), dtype),
      s);
  QsaPrepared prepared{out[0], out[1], out[2], out[3], {}, {}};
  if (asks) {
    prepared.q = out[4];
    prepared.index_q = out[5];
  }
  return prepared;
}

QsaOutput qsa_attend(
    const QsaQueries& in,
    const QsaWeights& w,
    mx::StreamOrDevice s) {
  const char* where = "qsa_attend";
  const auto& [q, proj, index_q, keys, values, pooled, first] = in;
  const int n = q.shape(0);
  const int dim = w.q_norm.shape(0), index_dim = w.index_q_norm.shape(0);
  check_activation(where, q);
  check_shape(where, "q", q, {n, w.heads * dim});
  check_shape(where, "proj", proj, {n, 2 * (w.kv_heads + w.heads) * dim});
  check_shape(where, "index_q", index_q, {n, w.index_heads * index_dim});
  check_shape(where, "keys", keys, {w.kv_heads, -1, dim});
  check_shape(where, "values", values, {w.kv_heads, keys.shape(1), dim});
  check_shape(where, "pooled", pooled, {-1, index_dim});
  for (const array* a : {&proj, &index_q, &keys, &values, &pooled}) {
    check_dtype(where, "inputs", *a, q.dtype());
  }
  if (first < 0 || first + n > keys.shape(1) ||
      (first + n) / w.ratio > pooled.shape(0)) {
    throw InvalidArgument(
        "[kernels.qsa_attend] rows " + std::to_string(first) + " to " +
        std::to_string(first + n) + " with " + std::to_string(keys.shape(1)) +
        " keys and " + std::to_string(pooled.shape(0)) + " pooled keys");
  }
  if (runs_text(s)) {
    return qsa_text_attend(in, w, s);
  }
  auto bind = [form = form_of(w, first)](
                  const std::vector<array>& inputs,
                  std::vector<array>& out) {
    return bind_attend(form, inputs, out);
  };
  auto out = cpu_node(
      where,
      bind,
      {q, proj, index_q, keys, values, pooled},
      {q.shape(), {n, w.budget_blocks}},
      {q.dtype(), mx::int32},
      s);
  return {out[0], out[1]};
}

} // namespace qwenmtp::kernels
