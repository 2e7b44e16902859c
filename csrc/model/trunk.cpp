#include "model/trunk.h"

#include <algorithm>

#include "base/error.h"
#include "model/ple_table.h"

namespace qwenmtp::model {

namespace {

/** Prefix of everything but the LM head. */
std::string body(Layout layout) {
  return layout == Layout::released ? "model.language_model."
                                    : "language_model.model.";
}

std::string head_module(Layout layout) {
  return layout == Layout::released ? "lm_head" : "language_model.lm_head";
}

} // namespace

std::vector<NgramTable> find_ngram_tables(Weights& w, const Config& config) {
  std::vector<NgramTable> tables;
  for (int index : config.ple_layers) {
    auto module = body(w.layout()) + "layers." + std::to_string(index) + ".ple";
    auto rank = static_cast<int>(tables.size());
    tables.push_back(find_ngram_table(w, config, module, rank));
  }
  return tables;
}

bool one_centred(Layout layout) {
  return layout == Layout::pack;
}

Trunk::Trunk(const Config& config, Weights& w, const ple::OpenOptions& ple)
    : config_(config),
      embed_(
          w.linear(
              body(w.layout()) + "embed_tokens",
              {config.vocab_size, config.hidden_size}),
          w.dtype()),
      head_(w.linear(
          head_module(w.layout()),
          {config.vocab_size, config.hidden_size})),
      mixer_(hyper_weights(
          w,
          config,
          body(w.layout()) + "hyper_connection_mixer",
          one_centred(w.layout()),
          true)) {
  for (int i = 0; i < config.n_layers(); i++) {
    layers_.push_back(load_layer(w, i, ple));
  }
}

Trunk::Layer Trunk::load_layer(
    Weights& w,
    int index,
    const ple::OpenOptions& options) const {
  auto p = body(w.layout()) + "layers." + std::to_string(index) + ".";
  bool one = one_centred(w.layout());
  Layer layer{
      std::nullopt,
      hyper_weights(w, config_, p + "attn_hyper_connection", one, false),
      std::nullopt,
      std::nullopt,
      hyper_weights(w, config_, p + "mlp_hyper_connection", one, false),
      MoeLayer(w, config_, p + "mlp")};
  if (config_.layer_types[index] == LayerType::linear_attention) {
    layer.gdn.emplace(w, config_, p + "linear_attn");
  } else {
    layer.qsa.emplace(w, config_, p + "self_attn", one);
  }
  const auto& with_ple = config_.ple_layers;
  if (auto it = std::find(with_ple.begin(), with_ple.end(), index);
      it != with_ple.end()) {
    auto table = find_ngram_table(
        w,
        config_,
        p + "ple",
        static_cast<int>(it - with_ple.begin()));
    layer.ple.emplace(
        w,
        config_,
        p + "ple",
        one,
        ple::open_stager(
            std::move(table.hash),
            std::move(table.spec),
            options));
  }
  return layer;
}

state::TrunkState Trunk::initial_state() const {
  state::TrunkState s;
  for (const auto& layer : layers_) {
    state::LayerState entry{
        layer.gdn ? std::variant<state::GdnState, state::KvCache>(
                        layer.gdn->initial_state())
                  : layer.qsa->initial_state(),
        std::nullopt,
        std::nullopt,
        std::nullopt};
    if (layer.ple) {
      entry.ple = layer.ple->initial_state();
    }
    s.layers.push_back(std::move(entry));
  }
  return s;
}

void Trunk::expect(std::span<const int32_t> ids, const state::TrunkState& state)
    const {
  for (size_t i = 0; i < layers_.size(); i++) {
    if (layers_[i].ple) {
      layers_[i].ple->expect(ids, *state.layers[i].ple);
    }
  }
}

void Trunk::expect_behind(
    std::span<const int32_t> before,
    std::span<const int32_t> ids) const {
  for (const auto& layer : layers_) {
    if (layer.ple) {
      layer.ple->expect_behind(before, ids);
    }
  }
}

std::vector<ple::Stager*> Trunk::stagers() const {
  std::vector<ple::Stager*> out;
  for (const auto& layer : layers_) {
    if (layer.ple) {
      out.push_back(&layer.ple->stager());
    }
  }
  return out;
}

TrunkOutput Trunk::forward(
    std::span<const int32_t> ids,
    state::TrunkState& state,
    LogitRows which,
    bool open_window,
    const Tracer& trace) const {
  int n = static_cast<int>(ids.size());
  if (n == 0) {
    throw InvalidArgument("[model.forward] no tokens, expected at least one");
  }
  if (n > config_.max_position - state.len) {
    throw InvalidArgument(
        "[model.forward] " + std::to_string(state.len) + " + " +
        std::to_string(n) + " tokens, expected at most " +
        std::to_string(config_.max_position));
  }
  auto next = state; // replaces `state` only once everything has been built
  Streams x(embed_(ids, config_.hc_count));
  auto at = qsa_positions(config_, state.len, n);
  for (size_t i = 0; i < layers_.size(); i++) {
    const auto& layer = layers_[i];
    auto& s = next.layers[i];
    auto t = trace.layer(i);
    auto watch = [&](const char* name) {
      if (t.on()) {
        t(name, x.value());
      }
    };
    watch("in");
    s.gdn_window.reset();
    s.ple_window.reset();
    if (layer.ple) {
      auto added = layer.ple->forward(
          x.value(),
          ids,
          *s.ple,
          open_window ? &s.ple_window : nullptr);
      t("ple", added);
      x.add(added);
    }
    auto attn = x.read(layer.attn_hyper);
    auto y = layer.gdn ? layer.gdn->forward(
                             attn.mix,
                             std::get<state::GdnState>(s.mixer),
                             open_window ? &s.gdn_window : nullptr)
                       : layer.qsa->forward(
                             attn.mix,
                             at,
                             std::get<state::KvCache>(s.mixer),
                             t);
    t("attn.mix", attn.mix);
    t("attn.inject", *attn.inject);
    t("attn.out", y);
    x.write(y, *attn.inject);
    auto mlp = x.read(layer.mlp_hyper);
    auto m = layer.moe.forward(mlp.mix, t);
    t("mlp.mix", mlp.mix);
    t("mlp.inject", *mlp.inject);
    t("moe.out", m);
    x.write(m, *mlp.inject);
    watch("out");
  }
  std::optional<mx::array> logits;
  if (which != LogitRows::none) {
    auto u = [&] {
      if (which == LogitRows::all || n == 1) {
        return x.read(mixer_).mix;
      }
      const auto& all = x.value();
      auto last = mx::slice(all, {n - 1, 0}, {n, all.shape(1)});
      return kernels::hyper_read(last, mixer_).mix;
    }();
    trace("final.mix", u);
    logits = head_(u);
  }
  TrunkOutput out{logits, x.value()};
  next.len = state.len + n;
  next.window = open_window ? n : 0;
  state = std::move(next);
  return out;
}

void Trunk::commit(state::TrunkState& state, int keep) const {
  if (keep < 1 || keep > state.window) {
    throw InternalError(
        "[model.commit] " + std::to_string(keep) + " rows of a window of " +
        std::to_string(state.window));
  }
  int dropped = state.window - keep;
  for (size_t i = 0; i < layers_.size(); i++) {
    const auto& layer = layers_[i];
    auto& s = state.layers[i];
    if (auto* cache = std::get_if<state::KvCache>(&s.mixer)) {
      cache->truncate(cache->len() - dropped);
    } else if (dropped > 0) {
      s.mixer = layer.gdn->commit(*s.gdn_window, keep);
    }
    if (s.ple && dropped > 0) {
      s.ple = layer.ple->commit(*s.ple_window, keep);
    }
    s.gdn_window.reset();
    s.ple_window.reset();
  }
  state.len -= dropped;
  state.window = 0;
}

void Trunk::settle(state::TrunkState& state) const {
  for (size_t i = 0; i < layers_.size(); i++) {
    if (auto* gdn = std::get_if<state::GdnState>(&state.layers[i].mixer)) {
      *gdn = layers_[i].gdn->settle(*gdn);
    }
  }
}

} // namespace qwenmtp::model
