#include "decode/state_decoder.h"

#include "decode/sync.h"

namespace qwenmtp::decode {

namespace {

/** The stored last rows of a state: both, a boundary's hidden, or none. */
LastRows stored_rows(const state::ModelState& state) {
  auto row = [](const std::optional<mx::array>& a) {
    return a ? std::optional(mx::reshape(*a, {1, -1})) : std::nullopt;
  };
  return {row(state.logits), row(state.hidden)};
}

} // namespace

StateDecoder::StateDecoder(
    std::unique_ptr<Network> network,
    state::ModelState& state,
    std::vector<int32_t> prompt,
    Options options)
    : state_(state),
      network_(std::move(network)),
      drops_history_(options.speculate && options.history == History::cycle),
      decoder_(
          *network_,
          std::move(options),
          std::move(prompt),
          stored_rows(state)) {
}

std::string StateDecoder::finish() {
  const trace::Span span("finish");
  const Final final = decoder_.finish();
  if (!final.safe) {
    decoder_.abandon();
    return final.error.empty() ? "repetition_stop" : final.error;
  }
  network_->settle();
  // A copied block accepted in part costs the re-forward lane a history row.
  const bool lost_a_row = !decoder_.statistics().copy.disabled_reason.empty();
  if (drops_history_ || lost_a_row) {
    network_->reset_history(network_->trunk_len() - 1);
  }
  state_.logits = mx::reshape(final.tip->logits_row(), {-1});
  auto arrays = network_->leaves();
  arrays.push_back(*state_.logits);
  if (final.tip->hidden) {
    state_.hidden = mx::reshape(final.tip->hidden_row(), {-1});
    arrays.push_back(*state_.hidden);
  }
  sync(arrays);
  state::check_invariants(state_);
  return "";
}

} // namespace qwenmtp::decode
