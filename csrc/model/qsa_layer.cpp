#include "model/qsa_layer.h"

namespace qwenmtp::model {

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
    : head_dim_(c.head_dim),
      index_dim_(c.index_dim),
      dtype_(w.dtype()),
      in_(w.stacked(
          {{module + ".k_proj", c.n_kv_heads * head_dim_},
           {module + ".v_proj", c.n_kv_heads * head_dim_},
           {module + ".q_proj", c.n_heads * 2 * head_dim_}},
          c.hidden_size)),
      index_(w.linear(
          module + ".indexer.index_qk_proj",
          {(c.index_heads + 1) * index_dim_, c.hidden_size})),
      o_(w.linear(module + ".o_proj", {c.hidden_size, c.n_heads * head_dim_})),
      weights_{
          w.norm(module + ".q_norm.weight", head_dim_, one_centred),
          w.norm(module + ".k_norm.weight", head_dim_, one_centred),
          w.norm(
              module + ".indexer.q_layernorm.weight",
              index_dim_,
              one_centred),
          w.norm(
              module + ".indexer.k_layernorm.weight",
              index_dim_,
              one_centred),
          c.n_heads,
          c.n_kv_heads,
          c.index_heads,
          c.index_ratio,
          c.index_blocks(),
          static_cast<float>(c.rms_norm_eps)} {
}

state::KvCache QsaLayer::initial_state() const {
  return state::KvCache(
      {weights_.kv_heads, head_dim_, index_dim_, weights_.ratio},
      dtype_);
}

namespace {

kernels::QsaPrepared prepare(
    const kernels::QsaRows& rows,
    const QsaPositions& at,
    const state::KvCache& cache,
    const kernels::QsaWeights& weights) {
  return kernels::qsa_prepare(
      rows,
      cache.raw(cache.n_blocks() * weights.ratio, cache.len()),
      {at.rows.cos, at.rows.sin},
      {at.blocks.cos, at.blocks.sin},
      weights);
}

/** Tokens that each row sees, [n, len] bool, from the ids of its blocks. */
mx::array visible_rows(const mx::array& blocks, int first, int len, int ratio) {
  int n = blocks.shape(0);
  auto tokens = mx::arange(len);
  auto block_of = mx::floor_divide(tokens, mx::array(ratio));
  auto chosen = mx::any(
      mx::equal(mx::expand_dims(blocks, -1), block_of),
      1); // [n, len]
  auto ends = mx::expand_dims(mx::arange(first + 1, first + n + 1), -1);
  auto tail = mx::logical_and(
      mx::greater_equal(block_of, mx::floor_divide(ends, mx::array(ratio))),
      mx::less(tokens, ends));
  return mx::logical_or(chosen, tail);
}

} // namespace

void QsaLayer::append(const kernels::QsaPrepared& rows, state::KvCache& cache)
    const {
  int first = cache.n_blocks();
  cache.append(rows.k, rows.v, rows.raw);
  if (rows.pooled.shape(0) > 0) {
    cache.set_pooled(first, rows.pooled);
  }
}

void QsaLayer::append(
    const mx::array& u,
    const QsaPositions& at,
    state::KvCache& cache) const {
  auto keys = in_.top(2 * weights_.kv_heads * head_dim_);
  auto in = kernels::rows(u, {keys.matrix(), index_.matrix()});
  append(prepare({in[0], in[1]}, at, cache, weights_), cache);
}

mx::array QsaLayer::forward(
    const mx::array& u,
    const QsaPositions& at,
    state::KvCache& cache,
    const Tracer& trace) const {
  int first = cache.len();
  auto in = kernels::rows(u, {in_.matrix(), index_.matrix()});
  auto rows = prepare({in[0], in[1]}, at, cache, weights_);
  append(rows, cache);
  auto r = kernels::qsa_attend(
      {*rows.q,
       in[0],
       *rows.index_q,
       cache.key_rows(),
       cache.value_rows(),
       cache.pooled_rows(),
       first},
      weights_);
  if (trace.on()) {
    trace("select", visible_rows(r.blocks, first, cache.len(), weights_.ratio));
  }
  return o_(r.y);
}

} // namespace qwenmtp::model
