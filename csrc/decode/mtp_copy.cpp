/** The round of MtpLoop that copies from the prompt instead of drafting. */
#include "decode/mtp.h"

#include "sampling/acceptance.h"

namespace qwenmtp::decode {

using sampling::Distribution;

/** Tries a block of the prompt as the round's drafts; false if there is none.
 */
bool MtpLoop::copy_round() {
  Turn& t = turn_;
  CopyStatistics& stats = t.statistics.copy;
  const auto block = copy_->propose(t.tokens, t.room(), stats);
  if (block.empty()) {
    return false;
  }
  std::unique_ptr<Network::Snapshot> before;
  if (!capture_lane()) {
    before = t.network.snapshot();
  }
  std::optional<Rows> out;
  std::shared_ptr<const HostRows> read;
  {
    const Stopwatch watch(t.statistics.seconds.verify);
    out = t.network.forward(
        window_ids(primary_, block),
        LogitRows::all,
        capture_lane());
    t.statistics.verify_calls++;
    read = wait(*out, false);
  }
  const HostRows& rows = *read;
  const Verdict verdict = accept_copy(block, rows);
  const int accepted = verdict.accepted;
  if (!capture_lane() && accepted < static_cast<int>(block.size())) {
    copy_rollback(*before);
    return true;
  }
  if (capture_lane()) {
    const Stopwatch watch(t.statistics.seconds.commit);
    t.network.commit(1 + accepted);
  }
  phase_ = Phase::head;
  for (int i = 0; i < accepted; i++) {
    t.append(block[i], rows, i);
  }
  if (accepted > 0 && t.is_stop(block[accepted - 1])) {
    t.stop_origin = StopOrigin::context_copy;
    phase_ = Phase::done;
  }
  if (verdict.correction) {
    t.append(*verdict.correction, rows, accepted);
    t.statistics.correction_tokens++;
    t.pending = verdict.correction;
    if (t.is_stop(*verdict.correction)) {
      t.stop_origin = StopOrigin::residual_correction;
      phase_ = Phase::done;
    }
  }
  copy_->record(accepted, block.size(), t.tokens.size(), stats);
  if (committed_history()) {
    flush_history();
    // No draft staged the primary's row here.
    append_history(
        mx::concatenate(
            {t.tip->hidden_row(), slice_rows(out->hidden, 0, accepted)},
            0),
        window_ids(primary_, block.first(accepted)));
  }
  t.tip = Tip{read, out->hidden, accepted};
  settle();
  t.release();
  return true;
}

/** Re-forward lane: a block accepted in part cannot be committed. The primary
 *  alone is forwarded again, without its history row, and copying ends. */
void MtpLoop::copy_rollback(const Network::Snapshot& before) {
  Turn& t = turn_;
  const Stopwatch watch(t.statistics.seconds.rollback);
  t.network.restore(before);
  const Rows again = t.network.forward({&primary_, 1}, LogitRows::last, false);
  t.tip = Tip{wait(again, true), again.hidden, 0};
  copying_ = false;
  t.statistics.copy.disabled_reason = "partial_block_in_reforward_lane";
  phase_ = Phase::head;
}

MtpLoop::Verdict MtpLoop::accept_copy(
    std::span<const int32_t> block,
    const HostRows& rows) {
  Turn& t = turn_;
  const Stopwatch watch(t.statistics.seconds.accept);
  Verdict verdict;
  for (size_t i = 0; i < block.size() && !verdict.rejected; i++) {
    const int row = static_cast<int>(i);
    bool ok;
    if (t.greedy()) {
      ok = t.target.argmax(rows, row) == block[i];
    } else {
      const Distribution p = t.target.distribution(rows, row);
      ok = t.draws.accept(p[block[i]]);
      if (!ok) {
        verdict.correction =
            t.draws.token(sampling::residual(p, Distribution::point(block[i])));
      }
    }
    verdict.rejected = !ok;
    verdict.accepted += ok;
  }
  for (int i = 0; i < verdict.accepted; i++) {
    if (t.is_stop(block[i])) {
      verdict.accepted = i + 1;
      verdict.correction.reset();
    }
  }
  return verdict;
}

} // namespace qwenmtp::decode
