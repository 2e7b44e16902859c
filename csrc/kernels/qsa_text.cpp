#include "kernels/qsa_text.h"

#include <cmath>

#include <mlx/ops.h>

#include "kernels/rows.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

/** Tokens that one part of the kernel qsa_attend sees. */
constexpr int kTextPart = 32;
/** Rows of one launch of it: a row's partial sums take 1.6 MB. */
constexpr int kTextAttendRows = 64;

QsaOutput text_attend(
    const QsaQueries& in,
    const QsaWeights& w,
    mx::StreamOrDevice s) {
  const int dim = w.q_norm.shape(0), index_dim = w.index_q_norm.shape(0);
  const int most = w.budget_blocks * w.ratio + w.ratio - 1;
  const int splits = (most + kTextPart - 1) / kTextPart;
  const int n = in.q.shape(0), n_blocks = in.pooled.shape(0);
  const std::pair<std::string, mx::fast::TemplateArg> type = {
      "T",
      in.q.dtype()};
  auto rank = text_node(
      "qsa_scores",
      {type, {"NI", w.index_heads}, {"DI", index_dim}, {"RATIO", w.ratio}},
      {in.index_q,
       in.pooled,
       scalar(in.first),
       scalar(std::sqrt(static_cast<float>(index_dim))),
       scalar(n),
       scalar(n_blocks)},
      s)[0];
  auto chosen = text_node(
      "qsa_top_blocks",
      {{"K", w.budget_blocks}, {"RATIO", w.ratio}},
      {rank, scalar(in.first), scalar(n_blocks)},
      s)[0];
  auto parts = text_node(
      "qsa_attend",
      {type,
       {"HQ", w.heads},
       {"HKV", w.kv_heads},
       {"D", dim},
       {"K", w.budget_blocks},
       {"RATIO", w.ratio},
       {"SPLITS", splits}},
      {in.q,
       in.keys,
       in.values,
       chosen,
       scalar(in.first),
       scalar(in.keys.shape(1))},
      s);
  auto y = text_node(
      "qsa_combine",
      {type,
       {"HQ", w.heads},
       {"HKV", w.kv_heads},
       {"D", dim},
       {"SPLITS", splits}},
      {parts[0], parts[1], in.proj},
      s)[0];
  return {y, chosen};
}

} // namespace

QsaPrepared qsa_text_prepare(
    const QsaRows& rows,
    const array& raw_tail,
    const QsaRope& at,
    const QsaRope& blocks,
    const QsaWeights& w,
    bool asks,
    mx::StreamOrDevice s) {
  const int n = rows.proj.shape(0), dim = w.q_norm.shape(0);
  const int index_dim = w.index_q_norm.shape(0), n_blocks = blocks.cos.shape(0);
  TemplateArgs args = {{"T", rows.proj.dtype()}};
  std::vector<array> inputs = {rows.proj, rows.index};
  if (asks) {
    args.emplace_back("HQ", w.heads);
    inputs.insert(inputs.end(), {w.q_norm, w.k_norm, w.index_q_norm});
  } else {
    inputs.push_back(w.k_norm);
  }
  args.insert(
      args.end(),
      {{"HKV", w.kv_heads},
       {"D", dim},
       {"NI", w.index_heads},
       {"DI", index_dim},
       {"RD", 2 * at.cos.shape(1)}});
  inputs.insert(inputs.end(), {at.cos, at.sin, scalar(w.eps), scalar(n)});
  auto out = text_node(asks ? "qsa_heads" : "qsa_keys", args, inputs, s);
  const size_t at_keys = asks ? 1 : 0;
  QsaPrepared
      made{out[at_keys], out[at_keys + 1], out[asks ? 4 : 2], raw_tail, {}, {}};
  if (asks) {
    made.q = out[0];
    made.index_q = out[3];
  }
  if (n_blocks == 0) {
    made.pooled = mx::zeros({0, index_dim}, rows.proj.dtype(), s);
    return made;
  }
  const int n_tail = raw_tail.shape(0);
  made.pooled = text_node(
      "qsa_pool",
      {{"T", made.raw.dtype()},
       {"DI", index_dim},
       {"RD", 2 * at.cos.shape(1)},
       {"RATIO", w.ratio}},
      {blocks.cos,
       blocks.sin,
       n_tail == 0 ? made.raw : raw_tail, // no input is empty
       made.raw,
       w.index_k_norm,
       scalar(w.eps),
       scalar(n_tail),
       scalar(n_blocks)},
      s)[0];
  return made;
}

QsaOutput qsa_text_attend(
    const QsaQueries& in,
    const QsaWeights& w,
    mx::StreamOrDevice s) {
  std::vector<array> y, blocks;
  for (int begin = 0; begin < in.q.shape(0); begin += kTextAttendRows) {
    const int end = std::min(begin + kTextAttendRows, in.q.shape(0));
    auto part = [&](const array& a) { return rows_between(a, begin, end, s); };
    auto out = text_attend(
        {part(in.q),
         part(in.proj),
         part(in.index_q),
         in.keys,
         in.values,
         in.pooled,
         in.first + begin},
        w,
        s);
    y.push_back(out.y);
    blocks.push_back(out.blocks);
  }
  if (y.size() == 1) {
    return {y[0], blocks[0]};
  }
  return {mx::concatenate(y, 0, s), mx::concatenate(blocks, 0, s)};
}

} // namespace qwenmtp::kernels
