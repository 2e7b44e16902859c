#include "model/moe_layer.h"

namespace qwenmtp::model {

namespace {

/** Stacks of all routed experts. */
struct Experts {
  Linear gate; // [E, I, H]
  Linear up;   // [E, I, H]
  Linear down; // [E, H, I]
};

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
      return Linear{w.settled(mx::stack(parts)), {}, {}, {}};
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
  if (kernels::runs_text({})) { // whose stacks are whole arrays
    halves = {mx::contiguous(halves[0]), mx::contiguous(halves[1])};
  }
  mx::eval(halves);
  return {
      {halves[0], {}, {}, {}},
      {halves[1], {}, {}, {}},
      w.packed(experts + "down_proj", down_shape)};
}

kernels::MoeWeights load(
    Weights& w,
    const Config& c,
    const std::string& module) {
  auto matrix = [&](const char* leaf, int out, int in) {
    return w.linear(module + leaf, {out, in}).matrix();
  };
  auto experts = load_experts(w, c, module);
  return {
      matrix(".gate", c.n_experts, c.hidden_size),
      experts.gate.matrix(),
      experts.up.matrix(),
      experts.down.matrix(),
      matrix(".shared_expert.gate_proj", c.shared_dim, c.hidden_size),
      matrix(".shared_expert.up_proj", c.shared_dim, c.hidden_size),
      matrix(".shared_expert.down_proj", c.hidden_size, c.shared_dim),
      matrix(".shared_expert_gate", 1, c.hidden_size),
      c.top_k};
}

} // namespace

MoeLayer::MoeLayer(Weights& w, const Config& c, const std::string& module)
    : weights_(load(w, c, module)) {
}

mx::array MoeLayer::forward(const mx::array& u, const Tracer& trace) const {
  auto r = kernels::moe(u, weights_);
  trace("router.ids", r.ids);
  trace("router.w", r.weights);
  return r.y;
}

} // namespace qwenmtp::model
