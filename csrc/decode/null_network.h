/** A network without a model: position n always has logits row n mod the given
 *  rows, and the draft head agrees with the trunk. What remains of a request's
 *  time is the loop's own, not even an evaluation. For benchmarks. */
#pragma once

#include "decode/network.h"

namespace qwenmtp::decode {

class NullNetwork : public Network {
 public:
  /** rows [n, V]; the widest forward is n rows. */
  explicit NullNetwork(const mx::array& rows);

  int trunk_len() const override {
    return len_;
  }
  Rows forward(std::span<const int32_t> ids, LogitRows which, bool open_window)
      override;
  void commit(int keep_rows) override {
    len_ += keep_rows - window_;
  }
  void keep_window() override {
  }
  std::unique_ptr<Snapshot> snapshot() const override;
  void restore(const Snapshot& snapshot) override;
  int history_len() const override {
    return history_len_;
  }
  Rows draft(const mx::array& hidden, const DraftToken& token, int depth)
      override;
  void append_history(const mx::array& hidden, std::span<const int32_t> ids)
      override;
  void truncate_history(int len) override {
    history_len_ = len;
  }
  void reset_history(int /* base */) override {
    history_len_ = 0;
  }
  std::vector<mx::array> leaves() const override {
    return {};
  }

 private:
  struct Saved : Snapshot {
    int len;
    int history_len;
  };

  const mx::array& rows_at(int position, int n) const;

  int n_rows_;
  // Every window there can be, evaluated: [n_rows * (n - 1) + first row].
  std::vector<mx::array> windows_;
  std::vector<mx::array> hidden_; // [n - 1]: n rows
  int len_ = 0;
  int window_ = 0;
  int history_len_ = 0;
};

} // namespace qwenmtp::decode
