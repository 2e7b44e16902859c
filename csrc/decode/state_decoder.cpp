#include "decode/state_decoder.h"

namespace qwenmtp::decode {

namespace {

/** The stored last rows of a state, where it has any. */
std::optional<Tip> stored_tip(const state::ModelState& state) {
  if (!state.logits) {
    return std::nullopt;
  }
  Tip out{mx::reshape(*state.logits, {1, -1}), std::nullopt, 0};
  if (state.hidden) {
    out.hidden = mx::reshape(*state.hidden, {1, -1});
  }
  return out;
}

} // namespace

StateDecoder::StateDecoder(
    std::unique_ptr<Network> network,
    state::ModelState& state,
    std::vector<int32_t> prompt,
    Options options)
    : state_(state),
      network_(std::move(network)),
      decoder_(
          *network_,
          std::move(options),
          std::move(prompt),
          stored_tip(state)) {
}

std::string StateDecoder::finish() {
  const Final final = decoder_.finish();
  if (!final.safe) {
    decoder_.abandon();
    return final.error.empty() ? "repetition_stop" : final.error;
  }
  state_.logits = mx::reshape(final.tip->logits_row(), {-1});
  auto arrays = network_->leaves();
  arrays.push_back(*state_.logits);
  if (final.tip->hidden) {
    state_.hidden = mx::reshape(final.tip->hidden_row(), {-1});
    arrays.push_back(*state_.hidden);
  }
  mx::eval(arrays);
  return "";
}

} // namespace qwenmtp::decode
