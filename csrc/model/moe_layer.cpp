#include "model/moe_layer.h"

#include <algorithm>

#include "model/math.h"

namespace qwenmtp::model {

namespace {

/** The three expert stacks in whichever of the containers' forms they have. */
Experts load_experts(Weights& w, const Config& c, const std::string& module) {
  mx::Shape gate_shape = {c.n_experts, c.expert_dim, c.hidden_size};
  mx::Shape down_shape = {c.n_experts, c.hidden_size, c.expert_dim};
  if (w.layout() != Layout::released) {
    auto experts = module + ".switch_mlp.";
    return {
        w.linear(experts + "gate_proj", gate_shape),
        w.linear(experts + "up_proj", gate_shape),
        w.linear(experts + "down_proj", down_shape)};
  }
  auto experts = module + ".experts.";
  if (!w.has(experts + "gate_up_proj")) { // one matrix an expert
    auto stack = [&](const char* leaf, int out, int in) {
      std::vector<mx::array> parts;
      for (int e = 0; e < c.n_experts; e++) {
        auto name = experts + std::to_string(e) + "." + leaf + ".weight";
        parts.push_back(w.dense(name, {out, in}, w.dtype()));
      }
      return Linear{settled(mx::stack(parts)), {}, {}, {}};
    };
    return {
        stack("gate_proj", c.expert_dim, c.hidden_size),
        stack("up_proj", c.expert_dim, c.hidden_size),
        stack("down_proj", c.hidden_size, c.expert_dim)};
  }
  auto both = w.packed(
      experts + "gate_up_proj",
      {c.n_experts, 2 * c.expert_dim, c.hidden_size});
  auto halves = mx::split(both.weight, 2, 1);
  for (auto& half : halves) {
    half = settled(mx::contiguous(half));
  }
  return {
      {halves[0], {}, {}, {}},
      {halves[1], {}, {}, {}},
      w.packed(experts + "down_proj", down_shape)};
}

mx::array swiglu(const mx::array& gate, const mx::array& up) {
  return mx::multiply(silu(gate), up);
}

} // namespace

MoeLayer::MoeLayer(Weights& w, const Config& c, const std::string& module)
    : top_k_(c.top_k),
      router_(w.linear(module + ".gate", {c.n_experts, c.hidden_size})),
      experts_(load_experts(w, c, module)),
      shared_gate_(w.linear(
          module + ".shared_expert.gate_proj",
          {c.shared_dim, c.hidden_size})),
      shared_up_(w.linear(
          module + ".shared_expert.up_proj",
          {c.shared_dim, c.hidden_size})),
      shared_down_(w.linear(
          module + ".shared_expert.down_proj",
          {c.hidden_size, c.shared_dim})),
      shared_weight_(
          w.linear(module + ".shared_expert_gate", {1, c.hidden_size})) {
}

mx::array MoeLayer::forward(const mx::array& u, const Tracer& trace) const {
  int n = u.shape(0);
  auto p = mx::softmax(router_(u), -1, true);
  // Stable ascending sort: among equal probabilities the larger id ranks
  // higher, and the last top_k stay in that order.
  auto order = mx::argsort(p, -1);
  int n_experts = p.shape(1);
  auto ids = mx::slice(order, {0, n_experts - top_k_}, {n, n_experts});
  auto kept = mx::take_along_axis(p, ids, -1);
  auto w = mx::divide(kept, mx::sum(kept, -1, true));
  trace("router.ids", ids);
  trace("router.w", w);

  auto x = mx::broadcast_to(mx::expand_dims(u, 1), {n, top_k_, u.shape(1)});
  auto y = experts_.down.gather(
      swiglu(experts_.gate.gather(x, ids), experts_.up.gather(x, ids)),
      ids);
  auto weighted = mx::split(mx::multiply(y, mx::expand_dims(w, -1)), top_k_, 1);
  constexpr int kPartials = 8;
  std::vector<mx::array> partial(
      weighted.begin(),
      weighted.begin() + std::min(kPartials, top_k_));
  for (int r = kPartials; r < top_k_; r++) {
    partial[r % kPartials] = mx::add(partial[r % kPartials], weighted[r]);
  }
  auto sum = partial[0];
  for (size_t r = 1; r < partial.size(); r++) {
    sum = mx::add(sum, partial[r]);
  }
  auto shared = mx::multiply(
      mx::sigmoid(shared_weight_(u)),
      shared_down_(swiglu(shared_gate_(u), shared_up_(u))));
  return mx::add(mx::squeeze(sum, 1), shared);
}

} // namespace qwenmtp::model
