#include "model/qsa_layer.h"

#include <cmath>

namespace qwenmtp::model {

namespace {

mx::array row_of(const mx::array& a, int row) {
  auto start = mx::Shape(a.ndim(), 0);
  auto stop = a.shape();
  start[0] = row;
  stop[0] = row + 1;
  return mx::squeeze(mx::slice(a, start, stop), 0);
}

} // namespace

QsaPositions qsa_positions(const Config& c, int len, int n) {
  int first = len / c.index_ratio;
  int last = (len + n) / c.index_ratio;
  return {
      rope_table(c.rope, len, n),
      rope_table(c.rope, first * c.index_ratio, last - first, c.index_ratio)};
}

QsaLayer::QsaLayer(
    Weights& w,
    const Config& c,
    const std::string& module,
    bool one_centred)
    : n_heads_(c.n_heads),
      n_kv_heads_(c.n_kv_heads),
      head_dim_(c.head_dim),
      index_heads_(c.index_heads),
      index_dim_(c.index_dim),
      ratio_(c.index_ratio),
      budget_blocks_(c.index_blocks()),
      eps_(c.rms_norm_eps),
      dtype_(w.dtype()),
      q_(w.linear(
          module + ".q_proj",
          {2 * n_heads_ * head_dim_, c.hidden_size})),
      k_(w.linear(
          module + ".k_proj",
          {n_kv_heads_ * head_dim_, c.hidden_size})),
      v_(w.linear(
          module + ".v_proj",
          {n_kv_heads_ * head_dim_, c.hidden_size})),
      o_(w.linear(module + ".o_proj", {c.hidden_size, n_heads_ * head_dim_})),
      q_norm_(w.norm(module + ".q_norm.weight", head_dim_, one_centred)),
      k_norm_(w.norm(module + ".k_norm.weight", head_dim_, one_centred)),
      index_(w.linear(
          module + ".indexer.index_qk_proj",
          {(index_heads_ + 1) * index_dim_, c.hidden_size})),
      index_q_norm_(w.norm(
          module + ".indexer.q_layernorm.weight",
          index_dim_,
          one_centred)),
      index_k_norm_(w.norm(
          module + ".indexer.k_layernorm.weight",
          index_dim_,
          one_centred)) {
}

state::KvCache QsaLayer::initial_state() const {
  return state::KvCache({n_kv_heads_, head_dim_, index_dim_, ratio_}, dtype_);
}

void QsaLayer::append(
    const mx::array& u,
    const QsaPositions& at,
    state::KvCache& cache) const {
  int n = u.shape(0);
  int first = cache.n_blocks();
  auto heads_first = [&](const mx::array& a) {
    return mx::transpose(a, {1, 0, 2});
  };
  auto k = rotate(
      rms_norm(mx::reshape(k_(u), {n, n_kv_heads_, head_dim_}), k_norm_, eps_),
      at.rows);
  auto v = mx::reshape(v_(u), {n, n_kv_heads_, head_dim_});
  auto raw = mx::slice(
      index_(u),
      {0, index_heads_ * index_dim_},
      {n, (index_heads_ + 1) * index_dim_});
  cache.append(heads_first(k), heads_first(v), raw);

  int blocks = cache.n_blocks() - first;
  if (blocks > 0) {
    auto rows = mx::reshape(
        cache.raw(first * ratio_, cache.n_blocks() * ratio_),
        {blocks, ratio_, index_dim_});
    auto mean =
        mx::astype(mx::mean(mx::astype(rows, mx::float32), 1), rows.dtype());
    auto keys = rotate(
        mx::expand_dims(rms_norm(mean, index_k_norm_, eps_), 1),
        at.blocks);
    cache.set_pooled(first, mx::squeeze(keys, 1));
  }
}

/** Ids of the rows that the query at `position` sees, ascending: the best
 *  blocks by (score, id) and the rows of the incomplete block. */
mx::array QsaLayer::select(
    const mx::array& iq,
    const state::KvCache& cache,
    int position) const {
  int n = (position + 1) / ratio_;
  auto keys = mx::astype(cache.pooled(0, n), mx::float32);
  auto dots = mx::matmul(mx::astype(iq, mx::float32), mx::transpose(keys));
  auto score = mx::divide(
      mx::sum(mx::maximum(dots, mx::array(0.0f)), 0),
      mx::array(std::sqrt(static_cast<float>(index_dim_))));
  auto penalty = mx::multiply(mx::arange(n, mx::float32), mx::array(1e-12f));
  auto order = mx::argsort(mx::subtract(score, penalty));
  auto blocks = mx::sort(
      mx::astype(mx::slice(order, {n - budget_blocks_}, {n}), mx::int32));
  auto ids = mx::flatten(mx::add(
      mx::multiply(mx::expand_dims(blocks, -1), mx::array(ratio_)),
      mx::arange(ratio_)));
  return mx::concatenate({ids, mx::arange(n * ratio_, position + 1)}, 0);
}

/** One query row q [Hq, D] over the rows `ids`, or over all rows up to
 *  `position`; [Hq * D]. Softmax and sums in float32, one rounding. */
mx::array QsaLayer::attend(
    const mx::array& q,
    const state::KvCache& cache,
    const std::optional<mx::array>& ids,
    int position) const {
  auto k = cache.keys(0, position + 1);
  auto v = cache.values(0, position + 1);
  if (ids) {
    k = mx::take(k, *ids, 1);
    v = mx::take(v, *ids, 1);
  }
  auto scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  auto groups = mx::reshape(
      mx::multiply(mx::astype(q, mx::float32), mx::array(scale)),
      {n_kv_heads_, n_heads_ / n_kv_heads_, head_dim_});
  auto p = mx::softmax(
      mx::matmul(groups, mx::swapaxes(mx::astype(k, mx::float32), -1, -2)),
      -1);
  auto out = mx::matmul(p, mx::astype(v, mx::float32));
  return mx::astype(mx::flatten(out), q.dtype());
}

mx::array QsaLayer::forward(
    const mx::array& u,
    const QsaPositions& at,
    state::KvCache& cache,
    const Tracer& trace) const {
  int n = u.shape(0);
  int past = cache.len();
  append(u, at, cache);

  auto halves =
      mx::split(mx::reshape(q_(u), {n, n_heads_, 2 * head_dim_}), 2, -1);
  auto q = rotate(rms_norm(halves[0], q_norm_, eps_), at.rows);
  auto iq = rotate(
      rms_norm(
          mx::reshape(
              mx::slice(index_(u), {0, 0}, {n, index_heads_ * index_dim_}),
              {n, index_heads_, index_dim_}),
          index_q_norm_,
          eps_),
      at.rows);

  std::vector<mx::array> rows;
  std::vector<mx::array> seen; // for the trace
  for (int i = 0; i < n; i++) {
    int position = past + i;
    std::optional<mx::array> ids;
    if ((position + 1) / ratio_ > budget_blocks_) {
      ids = select(row_of(iq, i), cache, position);
    }
    rows.push_back(attend(row_of(q, i), cache, ids, position));
    if (trace.on()) {
      auto visible = ids ? *ids : mx::arange(position + 1);
      seen.push_back(mx::any(
          mx::equal(
              mx::expand_dims(visible, 1),
              mx::expand_dims(mx::arange(past + n), 0)),
          0));
    }
  }
  if (trace.on()) {
    trace("select", mx::stack(seen));
  }
  auto gate = mx::sigmoid(mx::flatten(halves[1], -2, -1));
  return o_(mx::multiply(mx::stack(rows), gate));
}

} // namespace qwenmtp::model
