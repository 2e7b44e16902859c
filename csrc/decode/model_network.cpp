#include "decode/model_network.h"

#include <algorithm>

#include "base/error.h"
#include "decode/sync.h"

namespace qwenmtp::decode {

state::ModelState initial_state(const model::Model& model, bool speculate) {
  state::ModelState out;
  out.trunk = model.trunk().initial_state();
  if (speculate) {
    if (!model.mtp_head()) {
      throw InvalidArgument(
          "[decode.state] speculation on a model without an MTP head, expected "
          "plain autoregression");
    }
    out.mtp = model.mtp_head()->initial_state();
  }
  return out;
}

Rows ModelNetwork::forward(
    std::span<const int32_t> ids,
    LogitRows which,
    bool open_window) {
  const trace::Span span("forward", std::ssize(ids));
  Rows rows = model_.trunk().forward(ids, state_.trunk, which, open_window);
  state_.ids.insert(state_.ids.end(), ids.begin(), ids.end());
  state_.logits.reset();
  state_.hidden.reset();
  return rows;
}

void ModelNetwork::commit(int keep_rows) {
  model_.trunk().commit(state_.trunk, keep_rows);
  state_.ids.resize(state_.trunk.len);
}

void ModelNetwork::keep_window() {
  commit(state_.trunk.window);
}

void ModelNetwork::mark(const std::optional<mx::array>& hidden) {
  settle();
  state::Boundary here = state::boundary_of(state_);
  if (state_.mtp && hidden) {
    // A copy: a slice would keep the whole chunk's rows.
    here.hidden = mx::contiguous(mx::reshape(*hidden, {-1}));
    sync({*here.hidden});
  }
  auto& known = state_.boundaries;
  const auto at =
      std::ranges::lower_bound(known, here.len, {}, &state::Boundary::len);
  if (at == known.end() || at->len != here.len) {
    known.insert(at, std::move(here));
  }
}

void ModelNetwork::settle() {
  model_.trunk().settle(state_.trunk);
}

std::unique_ptr<Network::Snapshot> ModelNetwork::snapshot() const {
  auto saved = std::make_unique<Saved>();
  saved->at = state::boundary_of(state_);
  saved->mtp = state_.mtp;
  saved->logits = state_.logits;
  saved->hidden = state_.hidden;
  saved->boundaries = state_.boundaries;
  return saved;
}

void ModelNetwork::restore(const Snapshot& snapshot) {
  const auto& saved = dynamic_cast<const Saved&>(snapshot);
  state::rewind(state_, saved.at);
  state_.mtp = saved.mtp;
  state_.logits = saved.logits;
  state_.hidden = saved.hidden;
  state_.boundaries = saved.boundaries;
}

int ModelNetwork::history_len() const {
  return state_.mtp->len();
}

Rows ModelNetwork::draft(
    const mx::array& hidden,
    const DraftToken& token,
    int /* depth: the head is the same at every depth */) {
  const trace::Span span("draft");
  const model::Embedding& embedding = model_.trunk().embedding();
  const auto* id = std::get_if<int32_t>(&token);
  auto out = model_.mtp_head()->forward(
      hidden,
      id ? embedding({id, 1}) : embedding(std::get<mx::array>(token)),
      *state_.mtp);
  return {out.logits, out.hidden};
}

void ModelNetwork::append_history(
    const mx::array& hidden,
    std::span<const int32_t> ids) {
  const trace::Span span("history", std::ssize(ids));
  model_.mtp_head()->append(hidden, ids, *state_.mtp);
}

void ModelNetwork::truncate_history(int len) {
  state_.mtp->cache.truncate(len);
}

void ModelNetwork::reset_history(int base) {
  state_.mtp = model_.mtp_head()->initial_state();
  state_.mtp->base = base;
}

ple::StagerStats ModelNetwork::row_stats() const {
  ple::StagerStats sum;
  for (const auto* stager : model_.trunk().stagers()) {
    sum += stager->stats();
  }
  return sum;
}

std::vector<mx::array> ModelNetwork::leaves() const {
  auto out = state::arrays(state_.trunk);
  if (state_.mtp) {
    const auto history = state::arrays(*state_.mtp);
    out.insert(out.end(), history.begin(), history.end());
  }
  return out;
}

} // namespace qwenmtp::decode
