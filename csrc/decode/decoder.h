/** One request from prompt to committed state. The caller pulls: prefill, then
 *  steps, then finish; nothing is called back. Between two calls, and between
 *  any two phases of one, the request can be cancelled from another thread; a
 *  cancelled or failed request leaves the network as it found it. */
#pragma once

#include <variant>

#include "decode/ar.h"
#include "decode/mtp.h"
#include "decode/prefill.h"

namespace qwenmtp::decode {

/** What one call released. */
struct Released {
  std::vector<int32_t> ids;                       // no stop tokens
  std::vector<sampling::LogProbability> logprobs; // of ids, if asked for
  int drafted = 0; // by the draft head, or copied from the prompt
  int accepted = 0;
};

/** The state after the last call, for the next turn. */
struct Final {
  /** Whether there is a state to keep at all, and whether it may be reused:
   *  every emitted token forwarded and none cut away. */
  bool present = false;
  bool safe = false;
  std::optional<Tip> tip;
  /** Emitted but never forwarded, where final_commit was off or failed. */
  std::optional<int32_t> pending;
  std::string error; // why the final forward failed
};

class Decoder {
 public:
  /** prompt: every id of the context; the network holds its first trunk_len()
   *  tokens, and stored is what is left of them. Throws InvalidArgument. */
  Decoder(
      Network& network,
      Options options,
      std::vector<int32_t> prompt,
      LastRows stored = {});

  /** One chunk of the prompt; returns how many of its tokens are in. Steps do
   *  the rest on their own. */
  int prefill();
  bool prefilled() const {
    return prefill_.done();
  }

  /** Up to the next batch: a fresh primary, a round's accepted drafts with
   *  their correction, or a bonus. Empty when the request is done. */
  Released advance();
  /** A whole round. */
  Released step();
  bool done() const {
    return done_;
  }

  /** The final commit: forwards an emitted token that the trunk has not seen,
   *  with its history row. Once, after done(). A failed forward is reported in
   *  the result; a cancellation throws Cancelled. */
  Final finish();

  /** From any thread; takes effect at the next phase. */
  void cancel() {
    turn_.cancelled = true;
  }
  /** Puts the network back to before the request, unless it was finished
   *  safely. For a consumer that gives up, and for an unsafe final state. */
  void abandon();

  const std::vector<int32_t>& tokens() const {
    return turn_.tokens;
  }
  const Statistics& statistics() const {
    return turn_.statistics;
  }
  const sampling::Draws& draws() const {
    return turn_.draws;
  }
  Finish finish_reason() const;
  /** Meaningful for Finish::stop. */
  StopOrigin stop_origin() const {
    return turn_.stop_origin;
  }

 private:
  template <typename Work>
  void guarded(Work work);
  bool loop_done() const;
  bool at_head() const;
  void forward_pending();
  void refuse_if_cancelled();

  Turn turn_;
  Prefill prefill_;
  std::unique_ptr<Network::Snapshot> before_;
  std::variant<ArLoop, MtpLoop> loop_;
  bool done_ = false;
  bool finished_ = false;
  Finish interrupted_ = Finish::none;
};

} // namespace qwenmtp::decode
