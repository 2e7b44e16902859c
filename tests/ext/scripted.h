/** The scripted model of the decode fixtures behind decode::Network: logits and
 *  hiddens are integer hashes of the exact contents of its caches, so any
 * cache, history or order mistake changes the next row. The arithmetic is that
 * of tools/oracle/decode/scripted_math.py. Also the place of every fault hook.
 */
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "decode/network.h"

namespace qwenmtp::testing {

struct ScriptedConfig {
  uint64_t salt = 0x243F6A8885A308D3u;
  int vocab = 32;
  std::string mode = "hash"; // hash, ties, script
  double amp = 0.5;
  std::vector<int32_t> script;
  std::vector<int32_t> draft_script;
  /** Verified rows give their drafts all the mass: every draft is accepted. */
  bool accept_all = false;
  /** A trunk forward throws once more calls than this were logged; -1 never. */
  int fail_after = -1;
};

uint64_t fold(uint64_t h, uint64_t t);
uint32_t noise(uint64_t h, uint64_t j); // 0..65535

class ScriptedNetwork : public decode::Network {
 public:
  /** One call of the log: kind, then numbers as the fixtures list them. */
  struct Call {
    enum Kind { trunk, draft, history, commit } kind;
    std::vector<int64_t> numbers;
  };
  struct HistoryRow {
    uint64_t hash;
    int64_t tag; // 0: hidden of the trunk, 1: of the draft head
    int64_t length;
    int32_t token;
  };

  explicit ScriptedNetwork(ScriptedConfig config);

  int trunk_len() const override {
    return static_cast<int>(state_.tokens.size());
  }
  decode::Rows forward(
      std::span<const int32_t> ids,
      decode::LogitRows which,
      bool open_window) override;
  void commit(int keep_rows) override;
  void keep_window() override;
  std::unique_ptr<Snapshot> snapshot() const override;
  void restore(const Snapshot& snapshot) override;
  int history_len() const override {
    return static_cast<int>(state_.history.size());
  }
  decode::Rows draft(
      const mlx::core::array& hidden,
      const decode::DraftToken& draft,
      int depth) override;
  void append_history(
      const mlx::core::array& hidden,
      std::span<const int32_t> ids) override;
  void truncate_history(int len) override;
  void reset_history(int base) override;
  std::vector<mlx::core::array> leaves() const override {
    return {};
  }

  const std::vector<Call>& log() const {
    return log_;
  }
  void clear_log() {
    log_.clear();
  }
  const std::vector<int32_t>& tokens() const {
    return state_.tokens;
  }
  const std::vector<HistoryRow>& history() const {
    return state_.history;
  }
  /** Whether an evaluated row and hidden are those after the last token. */
  bool is_last_row(const mlx::core::array& logits) const;
  bool is_last_hidden(const mlx::core::array& hidden) const;

  /** From the next trunk forward on; -1 takes the fault away. */
  void fail_after(int calls) {
    config_.fail_after = calls;
  }

 private:
  struct State {
    std::vector<int32_t> tokens;
    std::vector<uint64_t> hashes; // hashes[n]: after n tokens
    std::vector<HistoryRow> history;
    std::vector<uint64_t> digests; // digests[n]: of n history rows
  };
  struct Saved : Snapshot {
    explicit Saved(State s) : state(std::move(s)) {
    }
    State state;
  };

  std::vector<float> trunk_row(uint64_t hash, size_t length) const;
  std::vector<float> draft_row(uint64_t hash, size_t length, uint64_t digest)
      const;
  mlx::core::array to_array(const std::vector<float>& rows) const;
  void push_history(const HistoryRow& row);

  ScriptedConfig config_;
  State state_;
  int window_ = 0;
  std::vector<Call> log_;
};

} // namespace qwenmtp::testing
