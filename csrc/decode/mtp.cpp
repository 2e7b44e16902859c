#include "decode/mtp.h"

#include <algorithm>

#include "decode/sync.h"
#include "sampling/acceptance.h"
#include "sampling/block_verify.h"

namespace qwenmtp::decode {

using sampling::Distribution;

std::vector<int32_t> window_ids(
    int32_t primary,
    std::span<const int32_t> drafts) {
  std::vector<int32_t> ids{primary};
  ids.insert(ids.end(), drafts.begin(), drafts.end());
  return ids;
}

MtpLoop::MtpLoop(Turn& turn)
    : turn_(turn),
      policy_(turn.options.depth, turn.options.auto_depth),
      copying_(turn.options.context_copy && !turn.options.target.penalised()) {
  if (copying_) {
    copy_.emplace(turn.prompt);
  }
  turn.statistics.copy.active = copying_;
}

void MtpLoop::advance() {
  switch (phase_) {
    case Phase::head:
      return head();
    case Phase::body:
      return body();
    case Phase::bonus:
      return bonus();
    case Phase::done:
      return;
  }
}

void MtpLoop::close() {
  flush_history();
  if (!copy_) {
    return;
  }
  CopyStatistics& copy = turn_.statistics.copy;
  copy.suspended = copy_->suspended(turn_.tokens.size());
  copy.backoff_tokens = copy_->backoff();
}

/** Takes the pending primary, or draws a fresh one and releases it. */
void MtpLoop::head() {
  Turn& t = turn_;
  if (t.room() <= 0 || t.repeats()) {
    phase_ = Phase::done;
    return;
  }
  t.statistics.rounds++;
  if (t.pending) {
    primary_ = *t.pending;
    t.pending.reset();
  } else {
    const Tip tip = *t.tip;
    primary_ = t.sample(*tip.rows, tip.row);
    t.append(primary_, *tip.rows, tip.row);
    t.release();
  }
  phase_ = Phase::body;
}

void MtpLoop::body() {
  const trace::Span span("round", turn_.statistics.rounds);
  Turn& t = turn_;
  if (t.room() <= 0 || t.is_stop(primary_)) {
    if (t.is_stop(primary_)) {
      t.stop_origin = StopOrigin::primary;
    }
    // Emitted, never forwarded: the final commit owes the trunk this token.
    t.pending = primary_;
    phase_ = Phase::done;
    return;
  }
  begin_history();
  if (copying_ && copy_round()) {
    return;
  }
  draft_round(std::min(policy_.next(), t.room()));
}

void MtpLoop::begin_history() {
  Network& network = turn_.network;
  const int limit = turn_.options.history_reset_rows;
  if (!committed_history()) {
    network.reset_history(network.trunk_len() - 1);
  } else if (limit > 0 && history_appended_ >= limit) {
    // No row waits: whatever was counted here had them appended first.
    network.reset_history(network.trunk_len() - 1);
    history_appended_ = 0;
    turn_.statistics.history_live_resets++;
  }
}

/** Appends committed rows, counted towards the history's bound. */
void MtpLoop::append_history(
    const mx::array& hidden,
    std::span<const int32_t> ids) {
  history_appended_ += static_cast<int>(ids.size());
  if (!ids.empty()) {
    turn_.network.append_history(hidden, ids);
  }
}

/** A row that no draft of this round reads: several are appended at once, which
 *  costs little more than one. */
void MtpLoop::hold_history(const mx::array& hidden, int32_t id) {
  constexpr size_t kMost = 32;
  held_hidden_.push_back(hidden);
  held_ids_.push_back(id);
  if (held_ids_.size() == kMost) {
    flush_history();
  }
}

void MtpLoop::flush_history() {
  if (!held_ids_.empty()) {
    turn_.network.append_history(mx::concatenate(held_hidden_, 0), held_ids_);
    held_hidden_.clear();
    held_ids_.clear();
  }
}

/** Schedules whatever the commit left unevaluated, so that no graph grows from
 *  round to round. */
void MtpLoop::settle() {
  mx::async_eval(turn_.network.leaves());
}

void MtpLoop::bonus() {
  Turn& t = turn_;
  phase_ = Phase::head;
  if (t.room() <= 0) {
    return;
  }
  const Stopwatch watch(t.statistics.seconds.bonus);
  const Tip tip = *t.tip;
  const int32_t token = t.sample(*tip.rows, tip.row);
  t.append(token, *tip.rows, tip.row);
  t.pending = token;
  t.statistics.bonus_tokens++;
  t.release();
  if (t.is_stop(token)) {
    t.stop_origin = StopOrigin::bonus;
    phase_ = Phase::done;
  }
}

// ---- draft, verify, accept ----

void MtpLoop::draft_round(int depth) {
  Statistics& stats = turn_.statistics;
  const double draft_before = stats.seconds.draft;
  const double verify_before = stats.seconds.verify;
  stats.rounds_by_depth[depth]++;
  stats.expected_tokens += policy_.expected_tokens(depth);

  Window window;
  propose(window, depth);
  turn_.poll();
  verify(window);
  const Verdict verdict = accept(window);
  stats.accepted_drafts += verdict.accepted;
  stats.rejected_drafts += verdict.rejected;
  policy_.record(
      {depth,
       verdict.accepted + verdict.rejected,
       verdict.accepted,
       stats.seconds.draft - draft_before,
       stats.seconds.verify - verify_before});
  if (verdict.accepted == depth) {
    commit_whole(window);
  } else {
    commit_part(window, verdict);
  }
}

void MtpLoop::verify(Window& window) {
  Turn& t = turn_;
  const Stopwatch watch(t.statistics.seconds.verify);
  const bool may_reject = !window.drafts.empty();
  if (may_reject && !capture_lane()) {
    window.before = t.network.snapshot();
  }
  window.rows = t.network.forward(
      window_ids(primary_, window.drafts),
      LogitRows::all,
      may_reject && capture_lane());
  t.statistics.verify_calls++;
  window.read = wait(*window.rows, !may_reject);
}

/** Waits for what the host reads of a forward of the trunk, and for the state
 *  where it is final. */
std::shared_ptr<const HostRows> MtpLoop::wait(const Rows& rows, bool final) {
  auto read = turn_.target.ask(*rows.logits);
  auto arrays = read->wanted();
  arrays.push_back(rows.hidden);
  if (final) {
    const auto leaves = turn_.network.leaves();
    arrays.insert(arrays.end(), leaves.begin(), leaves.end());
  }
  sync(arrays);
  return read;
}

MtpLoop::Verdict MtpLoop::accept(const Window& window) {
  const Stopwatch watch(turn_.statistics.seconds.accept);
  return turn_.greedy() ? accept_greedy(window) : accept_sampled(window);
}

void MtpLoop::tested(size_t d, double probability, bool accepted) {
  Statistics& stats = turn_.statistics;
  stats.tested_by_depth[d]++;
  stats.accepted_by_depth[d] += accepted;
  stats.accept_probability_sum_by_depth[d] += probability;
}

MtpLoop::Verdict MtpLoop::accept_greedy(const Window& window) {
  Turn& t = turn_;
  const HostRows& rows = *window.read;
  sampling::TokenCounts prefix = t.counts;
  const sampling::Steering steering{
      t.options.target.penalised() ? &prefix : nullptr,
      {}};
  Verdict verdict;
  for (size_t d = 0; d < window.drafts.size(); d++) {
    const int32_t draft = window.drafts[d];
    const bool ok =
        t.target.argmax(rows, static_cast<int>(d), steering) == draft;
    tested(d, ok ? 1.0 : 0.0, ok);
    if (!ok) {
      verdict.rejected = true;
      break;
    }
    verdict.accepted++;
    prefix[draft]++;
    if (t.is_stop(draft)) {
      break;
    }
  }
  return verdict;
}

MtpLoop::Verdict MtpLoop::accept_sampled(const Window& window) {
  Turn& t = turn_;
  const HostRows& rows = *window.read;
  sampling::TokenCounts prefix = t.counts;
  const sampling::Steering steering{
      t.options.target.penalised() ? &prefix : nullptr,
      {}};
  // Block verification needs every row before its first coin; a penalised row
  // depends on what was accepted before it.
  std::optional<sampling::BlockVerifier> block;
  if (t.options.block_verify && !t.options.target.penalised()) {
    std::vector<Distribution> p;
    for (size_t d = 0; d < window.drafts.size(); d++) {
      p.push_back(t.target.distribution(
          rows,
          static_cast<int>(d),
          {},
          sampling::Normalise::once));
    }
    block.emplace(p, window.proposals, window.drafts);
  }
  Verdict verdict;
  for (size_t d = 0; d < window.drafts.size(); d++) {
    const int32_t draft = window.drafts[d];
    const Distribution& q = window.proposals[d];
    Distribution p;
    if (!block) {
      p = t.target.distribution(rows, static_cast<int>(d), steering);
    }
    const double probability =
        block ? block->coin(d) : acceptance_probability(p, q, draft);
    const bool ok = t.draws.accept(probability);
    tested(d, probability, ok);
    if (!ok) {
      verdict.rejected = true;
      verdict.correction =
          t.draws.token(block ? block->residual(d) : sampling::residual(p, q));
      break;
    }
    verdict.accepted++;
    prefix[draft]++;
    if (t.is_stop(draft)) {
      break;
    }
  }
  return verdict;
}

/** Every draft accepted: the trunk is right as it stands. */
void MtpLoop::commit_whole(const Window& window) {
  Turn& t = turn_;
  const int n = static_cast<int>(window.drafts.size());
  {
    const Stopwatch watch(t.statistics.seconds.commit);
    if (n > 0) {
      if (capture_lane()) {
        t.network.keep_window();
      }
      if (committed_history()) {
        t.network.truncate_history(history_mark_ + 1);
        append_history(slice_rows(window.rows->hidden, 0, n), window.drafts);
      }
      settle();
    }
  }
  for (int d = 0; d < n; d++) {
    t.append(window.drafts[d], *window.read, d);
  }
  t.tip = Tip{window.read, window.rows->hidden, n};
  t.release();
  phase_ = Phase::bonus;
  if (n > 0 && t.is_stop(window.drafts.back())) {
    t.stop_origin = StopOrigin::accepted_draft;
    phase_ = Phase::done;
  }
}

/** A rejection, or a stop accepted before the last draft. */
void MtpLoop::commit_part(const Window& window, const Verdict& verdict) {
  Turn& t = turn_;
  const int accepted = verdict.accepted;
  std::vector<int32_t> emitted(
      window.drafts.begin(),
      window.drafts.begin() + accepted);
  if (verdict.correction) {
    emitted.push_back(*verdict.correction);
    t.statistics.correction_tokens++;
  }
  for (size_t d = 0; d < emitted.size(); d++) {
    t.append(emitted[d], *window.read, static_cast<int>(d));
  }
  if (capture_lane()) {
    const Stopwatch watch(t.statistics.seconds.commit);
    t.network.commit(1 + accepted);
    t.statistics.capture_commits++;
    t.tip = Tip{window.read, window.rows->hidden, accepted};
    if (verdict.correction) {
      t.pending = verdict.correction;
      t.statistics.deferred_correction_repairs++;
    }
    if (committed_history()) {
      t.network.truncate_history(history_mark_ + 1);
      append_history(
          slice_rows(window.rows->hidden, 0, accepted),
          std::span(window.drafts).first(accepted));
    }
  } else {
    const Stopwatch watch(t.statistics.seconds.repair);
    t.network.restore(*window.before);
    const Rows again = t.network.forward(
        window_ids(primary_, emitted),
        LogitRows::last,
        false);
    t.statistics.reforward_repairs++;
    const int n = static_cast<int>(emitted.size());
    t.tip = Tip{wait(again, true), slice_rows(again.hidden, n, n + 1), 0};
    if (committed_history()) {
      t.network.truncate_history(history_mark_ + 1);
      append_history(slice_rows(again.hidden, 0, n), emitted);
    }
  }
  settle();
  t.release();
  phase_ = Phase::head;
  const int32_t last = emitted.empty() ? primary_ : emitted.back();
  if (!emitted.empty() && t.is_stop(last)) {
    t.stop_origin = verdict.correction ? StopOrigin::residual_correction
                                       : StopOrigin::accepted_draft;
    phase_ = Phase::done;
  }
}

} // namespace qwenmtp::decode
