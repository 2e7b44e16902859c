/** Multi-token prediction: a round is primary, draft, verify, accept, commit.
 *  Behaviour: decode.md 4 to 6. */
#pragma once

#include "decode/context_copy.h"
#include "decode/policy.h"
#include "decode/turn.h"

namespace qwenmtp::decode {

/** [primary, drafts...] */
std::vector<int32_t> window_ids(
    int32_t primary,
    std::span<const int32_t> drafts);

/** Draft steps that need no host in between: one a uniform, where the reader's
 *  device can choose tokens, else one alone. Nothing is evaluated. */
struct DraftChain {
  struct Step {
    std::shared_ptr<const HostRows> rows; // [1, V]
    mx::array hidden;                     // [1, W]
    std::optional<mx::array> pick; // [1]: the token the next step was built for
  };

  /** Behind (hidden, token); `first` steps of the round came before. */
  DraftChain(
      Network& network,
      const RowReader& reader,
      const mx::array& hidden,
      int32_t token,
      int first,
      std::span<const double> uniforms);

  std::vector<Step> steps;
  std::vector<mx::array> wanted; // what the host reads
};

class MtpLoop {
 public:
  explicit MtpLoop(Turn& turn);

  /** One phase of a round; each releases at most one batch. */
  void advance();

  bool done() const {
    return phase_ == Phase::done;
  }
  /** Between two rounds. */
  bool at_head() const {
    return phase_ == Phase::head;
  }
  /** Fills the counters that only the end of a request knows. */
  void close();

 private:
  enum class Phase { head, body, bonus, done };

  /** The verified window of a round: [primary, drafts...]. */
  struct Window {
    std::vector<int32_t> drafts;
    std::vector<sampling::Distribution>
        proposals; // q, where the target samples
    std::optional<Rows> rows;
    std::shared_ptr<const HostRows> read;      // its logits
    std::unique_ptr<Network::Snapshot> before; // re-forward lane
  };

  /** What the acceptance of a window decided. */
  struct Verdict {
    int accepted = 0;
    bool rejected = false;
    std::optional<int32_t> correction;
  };

  void head();
  void body();
  void bonus();

  void begin_history();
  bool copy_round();
  void copy_rollback(const Network::Snapshot& before);
  Verdict accept_copy(std::span<const int32_t> block, const HostRows& rows);

  void draft_round(int depth);
  void propose(Window& window, int depth);
  void verify(Window& window);
  std::shared_ptr<const HostRows> wait(const Rows& rows, bool final);
  Verdict accept(const Window& window);
  Verdict accept_greedy(const Window& window);
  Verdict accept_sampled(const Window& window);
  void tested(size_t d, double probability, bool accepted);
  void commit_whole(const Window& window);
  void commit_part(const Window& window, const Verdict& verdict);
  void append_history(const mx::array& hidden, std::span<const int32_t> ids);
  void hold_history(const mx::array& hidden, int32_t id);
  void flush_history();
  void settle();

  bool committed_history() const {
    return turn_.options.history == History::committed;
  }
  bool capture_lane() const {
    return turn_.options.lane == Lane::capture_commit;
  }

  Turn& turn_;
  Phase phase_ = Phase::head;
  int32_t primary_ = 0;
  // History rows of rounds without drafts, until something reads the history.
  std::vector<mx::array> held_hidden_; // [1, W]
  std::vector<int32_t> held_ids_;
  int history_mark_ = 0;     // history rows before the round's drafts
  int history_appended_ = 0; // rows committed since the last reset
  DepthPolicy policy_;
  std::optional<ContextCopy> copy_;
  bool copying_;
};

} // namespace qwenmtp::decode
