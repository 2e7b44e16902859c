#include "decode/decoder.h"

#include <algorithm>

#include "base/error.h"
#include "decode/sync.h"

namespace qwenmtp::decode {

namespace {

Options checked(Options options) {
  if (options.max_tokens < 0) {
    throw InvalidArgument(
        "[decoder] max_tokens " + std::to_string(options.max_tokens) +
        ", expected 0 or more");
  }
  if (options.speculate && (options.depth < 1 || options.depth > kMaxDepth)) {
    throw InvalidArgument(
        "[decoder] depth " + std::to_string(options.depth) +
        ", expected 1 to " + std::to_string(kMaxDepth));
  }
  return options;
}

const char* lane_name(const Options& options) {
  if (!options.speculate) {
    return "ar";
  }
  return options.lane == Lane::capture_commit ? "capture_commit" : "reforward";
}

/** Charges the n-gram rows and the waits of a scope to the request. */
class Meter {
 public:
  explicit Meter(Turn& turn)
      : turn_(turn), rows_(turn.network.row_stats()), syncs_(n_syncs) {
  }
  ~Meter() {
    turn_.statistics.rows += turn_.network.row_stats() - rows_;
    turn_.statistics.syncs += n_syncs - syncs_;
  }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

 private:
  Turn& turn_;
  ple::StagerStats rows_;
  int64_t syncs_;
};

std::variant<ArLoop, MtpLoop> make_loop(Turn& turn) {
  if (turn.options.speculate) {
    return MtpLoop(turn);
  }
  return ArLoop(turn);
}

} // namespace

Decoder::Decoder(
    Network& network,
    Options options,
    std::vector<int32_t> prompt,
    LastRows stored)
    : turn_(network, checked(std::move(options)), std::move(prompt)),
      prefill_(
          network,
          turn_.prompt,
          std::move(stored),
          turn_.options.prefill,
          turn_.options.speculate &&
              turn_.options.history == History::committed,
          turn_.options.speculate),
      before_(network.snapshot()),
      loop_(make_loop(turn_)) {
  turn_.statistics.lane = lane_name(turn_.options);
  turn_.statistics.prompt_tokens = static_cast<int64_t>(turn_.prompt.size());
  turn_.statistics.cached_tokens = network.trunk_len();
  prefill_.mark_prefix();
  if (prefill_.done()) {
    turn_.tip = prefill_.tip();
  }
}

template <typename Work>
void Decoder::guarded(Work work) {
  const Meter meter(turn_);
  try {
    work();
  } catch (const Interrupted& interrupted) {
    interrupted_ = interrupted.reason;
    abandon();
  } catch (...) {
    abandon();
    throw;
  }
}

void Decoder::abandon() {
  done_ = true;
  if (before_) {
    turn_.network.restore(*before_);
    before_.reset();
  }
}

int Decoder::prefill() {
  const trace::Span span("prefill");
  int held = turn_.network.trunk_len();
  guarded([&] {
    turn_.poll();
    if (!prefill_.done()) {
      held = prefill_.step(turn_.statistics.seconds);
    }
    if (prefill_.done() && !turn_.tip) {
      turn_.tip = prefill_.tip();
    }
  });
  return held;
}

bool Decoder::loop_done() const {
  return std::visit([](const auto& loop) { return loop.done(); }, loop_);
}

bool Decoder::at_head() const {
  const auto* mtp = std::get_if<MtpLoop>(&loop_);
  return !mtp || mtp->at_head();
}

Released Decoder::advance() {
  Released out;
  const Statistics& stats = turn_.statistics;
  const int64_t drafted = stats.drafted_tokens + stats.copy.drafted_tokens;
  const int64_t accepted = stats.accepted_drafts + stats.copy.accepted_tokens;
  while (!done_ && !prefilled()) {
    prefill();
  }
  guarded([&] {
    const Stopwatch watch(turn_.statistics.seconds.decode);
    while (!done_ && !loop_done() && turn_.batch.empty()) {
      turn_.poll();
      std::visit([](auto& loop) { loop.advance(); }, loop_);
    }
    if (!done_ && turn_.batch.empty()) {
      turn_.flush();
      if (auto* mtp = std::get_if<MtpLoop>(&loop_)) {
        mtp->close();
      }
      done_ = true;
    }
  });
  out.ids = std::exchange(turn_.batch, {});
  out.logprobs = std::exchange(turn_.batch_logprobs, {});
  out.drafted = static_cast<int>(
      stats.drafted_tokens + stats.copy.drafted_tokens - drafted);
  out.accepted = static_cast<int>(
      stats.accepted_drafts + stats.copy.accepted_tokens - accepted);
  return out;
}

Released Decoder::step() {
  const trace::Span span("step");
  Released round = advance();
  while (!done_ && !at_head()) {
    Released more = advance();
    round.ids.insert(round.ids.end(), more.ids.begin(), more.ids.end());
    round.logprobs.insert(
        round.logprobs.end(),
        more.logprobs.begin(),
        more.logprobs.end());
    round.drafted += more.drafted;
    round.accepted += more.accepted;
  }
  return round;
}

Finish Decoder::finish_reason() const {
  if (interrupted_ != Finish::none || !done_) {
    return interrupted_;
  }
  const bool stopped =
      std::any_of(turn_.tokens.begin(), turn_.tokens.end(), [&](int32_t token) {
        return turn_.is_stop(token);
      });
  if (stopped) {
    return Finish::stop;
  }
  // A repetition stop on the last allowed token counts as the limit in the
  // autoregressive loop alone.
  const bool repeated =
      turn_.repeated && (turn_.options.speculate || turn_.room() > 0);
  return repeated ? Finish::stop : Finish::length;
}

/** Adds the pending token to history and trunk, exactly once. */
void Decoder::forward_pending() {
  Turn& t = turn_;
  const int32_t token = *t.pending;
  if (t.options.speculate && t.options.history == History::committed) {
    t.network.append_history(t.tip->hidden_row(), {&token, 1});
  }
  const Rows rows = t.network.forward({&token, 1}, LogitRows::last, false);
  auto arrays = t.network.leaves();
  arrays.push_back(*rows.logits);
  if (t.options.speculate) {
    arrays.push_back(rows.hidden);
  }
  sync(arrays);
  t.tip = Tip{std::make_shared<HostRows>(*rows.logits), std::nullopt, 0};
  if (t.options.speculate) {
    t.tip->hidden = rows.hidden;
  }
  t.pending.reset();
}

void Decoder::refuse_if_cancelled() {
  if (turn_.cancelled) {
    abandon();
    throw Cancelled("[decoder.finish] cancelled while the state was finalised");
  }
}

Final Decoder::finish() {
  Turn& t = turn_;
  const Meter meter(t);
  if (!done_ || !before_ || finished_) {
    throw InternalError(
        "[decoder.finish] request running, abandoned or finished, expected one "
        "that is done");
  }
  Final final;
  const bool speculate = t.options.speculate;
  if (!t.options.final_commit) {
    final.pending = t.pending;
    return final;
  }
  if (!speculate && !t.tokens.empty() && !t.repeated) {
    // The loop leaves before it forwards its last token.
    t.pending = t.tokens.back();
  }
  if (t.pending && !t.tokens.empty() && !t.repeated) {
    const Stopwatch watch(t.statistics.seconds.final_commit);
    refuse_if_cancelled();
    try {
      forward_pending();
    } catch (const std::exception& error) {
      final.error = error.what();
    }
    refuse_if_cancelled();
  }
  finished_ = true;
  final.pending = t.pending;
  final.safe = !t.pending && !t.repeated;
  final.present = speculate || (!t.tokens.empty() && final.safe);
  final.tip = t.tip;
  if (final.safe) {
    before_.reset();
  }
  return final;
}

} // namespace qwenmtp::decode
