#include "kernels/sample.h"

#include "base/error.h"
#include "base/exp_sum.h"
#include "kernels/rows.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

/** Values of a row that one threadgroup of sample_chunks stages: 16 KB. */
constexpr int kTextChunk = 4096;

int parts(int n, int of) {
  return (n + of - 1) / of;
}

SampleOutput text_sample(
    const array& logits,
    float scale,
    int m,
    mx::StreamOrDevice s) {
  const int size = logits.shape(1);
  auto chunks = text_node(
      "sample_chunks",
      {{"T", logits.dtype()}, {"V", size}, {"M", m}, {"CHUNK", kTextChunk}},
      {logits, scalar(scale)},
      s);
  auto out = text_node(
      "sample_row",
      {{"CHUNKS", parts(size, kTextChunk)},
       {"BLOCKS", parts(size, kExpBlock)},
       {"M", m}},
      chunks,
      s);
  return {out[0], out[1], out[2], out[3]};
}

} // namespace

SampleOutput sample(
    const array& logits,
    float scale,
    int m,
    mx::StreamOrDevice s) {
  check_shape("sample", "logits", logits, {-1, -1});
  const int n = logits.shape(0);
  if (m < 1 || m > logits.shape(1)) {
    throw InvalidArgument(
        "[kernels.sample] " + std::to_string(m) + " candidates of " +
        std::to_string(logits.shape(1)) + " values");
  }
  type_of(logits);
  if (runs_text(s)) {
    return text_sample(logits, scale, m, s);
  }
  auto bind = [scale, m](
                  const std::vector<array>& in,
                  std::vector<array>& out) -> std::function<void()> {
    cpu::SampleCall call{};
    call.type = type_of(in[0]);
    call.n_rows = in[0].shape(0);
    call.size = in[0].shape(1);
    call.most = m;
    call.scale = scale;
    call.logits = rows_of(in[0]);
    call.top = out[0].data<float>();
    call.ids = out[1].data<int32_t>();
    call.ties = out[2].data<int32_t>();
    call.total = out[3].data<float>();
    return [call, body = cpu::bodies().sample] { body(call); };
  };
  auto out = cpu_node(
      "sample",
      bind,
      {logits},
      {{n, m}, {n, m}, {n, 1}, {n, 2}},
      {mx::float32, mx::int32, mx::int32, mx::float32},
      s);
  return {out[0], out[1], out[2], out[3]};
}

array pick(
    const SampleOutput& candidates,
    PickLaw law,
    float u,
    mx::StreamOrDevice s) {
  const int m = candidates.top.shape(1);
  check_shape("pick", "candidates", candidates.top, {1, m});
  if (law.k < 1 || law.k > m) {
    throw InvalidArgument(
        "[kernels.pick] the " + std::to_string(law.k) + " best of " +
        std::to_string(m) + " candidates");
  }
  const std::vector<array> in = {
      candidates.top,
      candidates.ids,
      candidates.total};
  if (runs_text(s)) {
    return text_node(
        "sample_pick",
        {{"M", m}},
        {in[0], in[1], in[2], scalar(law.k), scalar(law.top_p), array({u})},
        s)[0];
  }
  auto bind = [law, u](
                  const std::vector<array>& in,
                  std::vector<array>& out) -> std::function<void()> {
    cpu::PickCall call{};
    call.n = in[0].shape(1);
    call.k = law.k;
    call.top_p = law.top_p;
    call.u = u;
    call.top = in[0].data<float>();
    call.ids = in[1].data<int32_t>();
    call.total = in[2].data<float>();
    call.token = out[0].data<int32_t>();
    return [call, body = cpu::bodies().pick] { body(call); };
  };
  return cpu_node("pick", bind, in, {{1}}, {mx::int32}, s)[0];
}

} // namespace qwenmtp::kernels
