#include "decode/ar.h"

#include "decode/sync.h"

namespace qwenmtp::decode {

void ArLoop::advance() {
  const trace::Span span("round", turn_.statistics.rounds + 1);
  Turn& t = turn_;
  if (t.room() <= 0) {
    done_ = true;
    return;
  }
  if (!t.tokens.empty()) {
    forward_last();
  }
  const Tip tip = *t.tip;
  const int32_t token = t.sample(*tip.rows, tip.row);
  t.append(token, *tip.rows, tip.row);
  t.statistics.rounds++;
  t.release();
  done_ = t.repeats() || t.room() <= 0;
  if (t.is_stop(token)) {
    t.stop_origin = StopOrigin::primary;
    done_ = true;
  }
  if (!done_) {
    t.network.expect({&token, 1});
  }
}

/** Forwards the token that the previous step emitted. */
void ArLoop::forward_last() {
  Turn& t = turn_;
  const Stopwatch watch(t.statistics.seconds.verify);
  const Rows next =
      t.network.forward({&t.tokens.back(), 1}, LogitRows::last, false);
  t.statistics.verify_calls++;
  t.tip = Tip{t.target.ask(*next.logits), std::nullopt, 0};
  auto arrays = t.tip->rows->wanted();
  const auto leaves = t.network.leaves();
  arrays.insert(arrays.end(), leaves.begin(), leaves.end());
  if (t.options.async) {
    mx::async_eval(arrays);
  } else {
    sync(arrays);
  }
}

} // namespace qwenmtp::decode
