#include "model/mtp_head.h"

#include "kernels/norm.h"

namespace qwenmtp::model {

namespace {

/** Both input norms are stored zero-centred in every container; packs add the
 *  one in the stored type. */
mx::array input_norm(Weights& w, const std::string& name, int size) {
  if (w.layout() != Layout::pack) {
    return w.norm(name, size, false);
  }
  auto stored = w.dense(name, {size}, mx::bfloat16);
  return w.settled(
      mx::astype(mx::add(stored, mx::array(1.0f, mx::bfloat16)), w.dtype()));
}

} // namespace

bool MtpHead::present(const Weights& weights) {
  return weights.has("mtp.fc_hidden.weight");
}

MtpHead::MtpHead(const Trunk& trunk, Weights& w)
    : trunk_(trunk),
      norm_embedding_(input_norm(
          w,
          "mtp.pre_fc_norm_embedding.weight",
          trunk.config().hidden_size)),
      norm_hidden_(input_norm(
          w,
          "mtp.pre_fc_norm_hidden.weight",
          trunk.config().wide())),
      fc_embedding_(w.linear(
          "mtp.fc_embedding",
          {trunk.config().hidden_size, trunk.config().hidden_size})),
      fc_hidden_(w.linear(
          "mtp.fc_hidden",
          {trunk.config().hidden_size, trunk.config().hidden_size})),
      attn_hyper_(hyper_weights(
          w,
          trunk.config(),
          "mtp.layers.0.attn_hyper_connection",
          one_centred(w.layout()),
          false)),
      qsa_(
          w,
          trunk.config(),
          "mtp.layers.0.self_attn",
          one_centred(w.layout())),
      mlp_hyper_(hyper_weights(
          w,
          trunk.config(),
          "mtp.layers.0.mlp_hyper_connection",
          one_centred(w.layout()),
          false)),
      moe_(w, trunk.config(), "mtp.layers.0.mlp"),
      mixer_(hyper_weights(
          w,
          trunk.config(),
          "mtp.hyper_connection_mixer",
          one_centred(w.layout()),
          true)) {
}

state::MtpState MtpHead::initial_state() const {
  return {qsa_.initial_state(), 0};
}

mx::array MtpHead::fuse(const mx::array& hidden, const mx::array& embedded)
    const {
  const auto& c = trunk_.config();
  const auto eps = static_cast<float>(c.rms_norm_eps);
  auto h = kernels::rms_norm(hidden, norm_hidden_, eps);
  auto e = fc_embedding_(kernels::rms_norm(embedded, norm_embedding_, eps));
  int n = embedded.shape(0);
  auto f = fc_hidden_(mx::reshape(h, {n * c.hc_count, c.hidden_size}));
  auto sum = mx::add(
      mx::reshape(f, {n, c.hc_count, c.hidden_size}),
      mx::expand_dims(e, -2));
  return mx::reshape(sum, {n, c.wide()});
}

MtpOutput MtpHead::forward(
    const mx::array& hidden,
    const mx::array& embedded,
    state::MtpState& state) const {
  Streams x(fuse(hidden, embedded));
  auto at = qsa_positions(trunk_.config(), state.len(), embedded.shape(0));
  auto attn = x.read(attn_hyper_);
  x.write(qsa_.forward(attn.mix, at, state.cache, Tracer()), *attn.inject);
  auto mlp = x.read(mlp_hyper_);
  x.write(moe_.forward(mlp.mix, Tracer()), *mlp.inject);
  auto u = x.read(mixer_).mix;
  return {trunk_.lm_head(u), x.value()};
}

void MtpHead::append(
    const mx::array& hidden,
    std::span<const int32_t> ids,
    state::MtpState& state) const {
  auto x = fuse(hidden, trunk_.embedding()(ids));
  auto at =
      qsa_positions(trunk_.config(), state.len(), static_cast<int>(ids.size()));
  qsa_.append(kernels::hyper_read(x, attn_hyper_).mix, at, state.cache);
}

} // namespace qwenmtp::model
