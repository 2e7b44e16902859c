/** What the decode loops need of a network: rows in, rows out, lazily. The real
 *  model and the scripted trunk of the tests stand behind it. */
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include <mlx/mlx.h>

#include "model/trunk.h"

namespace qwenmtp::decode {

namespace mx = mlx::core;

using model::LogitRows;
/** logits [n, V], [1, V] or none; hidden [n, W], one row per token. */
using Rows = model::TrunkOutput;

/** A token that the host knows, or one [1] int32 that a device will choose. */
using DraftToken = std::variant<int32_t, mx::array>;

class Network {
 public:
  /** Everything forwards change, at one moment; shares its arrays. */
  class Snapshot {
   public:
    virtual ~Snapshot() = default;
  };

  virtual ~Network() = default;

  /** Tokens that the trunk holds, an open window included. */
  virtual int trunk_len() const = 0;

  /** Forwards n >= 1 tokens. With open_window they are provisional until commit
   *  or keep_window, else final. */
  virtual Rows forward(
      std::span<const int32_t> ids,
      LogitRows which,
      bool open_window) = 0;

  /** A hint: `ids` may follow what the trunk holds. Never waits, changes
   *  nothing that can be seen. */
  virtual void expect(std::span<const int32_t> /* ids */) {
  }

  /** Ends the window: its first keep_rows rows stay, as if the others had never
   *  been forwarded. */
  virtual void commit(int keep_rows) = 0;
  /** Ends the window with every row kept; nothing is replayed. */
  virtual void keep_window() = 0;

  /** Records the state of now as a place to come back to in later requests.
   *  hidden [1, W]: of its last token, evaluated. Without an open window. */
  virtual void mark(const std::optional<mx::array>& /* hidden */) {
  }
  /** Applies whatever committed rows a device still holds back: the state can
   *  then be saved. */
  virtual void settle() {
  }

  virtual std::unique_ptr<Snapshot> snapshot() const = 0;
  virtual void restore(const Snapshot& snapshot) = 0;

  /** Rows of the draft head's history. */
  virtual int history_len() const = 0;
  /** One draft step of the given depth (1 is the first): appends the history
   *  row (hidden [1, W], token) and returns logits [1, V] and the head's own
   *  hidden [1, W]. */
  virtual Rows draft(
      const mx::array& hidden,
      const DraftToken& token,
      int depth) = 0;
  /** Appends rows (hidden[i], ids[i]) without drafting from them. */
  virtual void append_history(
      const mx::array& hidden,
      std::span<const int32_t> ids) = 0;
  virtual void truncate_history(int len) = 0;
  /** Empties the history; its next row will be that of trunk position `base`.
   */
  virtual void reset_history(int base) = 0;

  /** Counters of the n-gram rows read so far, by whatever request. */
  virtual ple::StagerStats row_stats() const {
    return {};
  }

  /** Arrays of the state that may still be unevaluated. */
  virtual std::vector<mx::array> leaves() const = 0;
};

} // namespace qwenmtp::decode
