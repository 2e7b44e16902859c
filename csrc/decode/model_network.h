/** The real model behind decode::Network, working on one ModelState. */
#pragma once

#include "decode/network.h"
#include "model/model.h"
#include "state/model_state.h"

namespace qwenmtp::decode {

/** A fresh state; `speculate` gives it an MTP history. Throws InvalidArgument
 *  where the model has no MTP head. */
state::ModelState initial_state(const model::Model& model, bool speculate);

class ModelNetwork : public Network {
 public:
  /** Both must outlive the network. Its forwards take the state's stored last
   *  rows away; whoever finishes a request puts the new ones there. */
  ModelNetwork(const model::Model& model, state::ModelState& state)
      : model_(model), state_(state) {
  }

  int trunk_len() const override {
    return state_.len();
  }
  Rows forward(std::span<const int32_t> ids, LogitRows which, bool open_window)
      override;
  void expect(std::span<const int32_t> ids) override {
    model_.trunk().expect(ids, state_.trunk);
  }
  void commit(int keep_rows) override;
  void keep_window() override;
  void mark(const std::optional<mx::array>& hidden) override;
  void settle() override;
  std::unique_ptr<Snapshot> snapshot() const override;
  void restore(const Snapshot& snapshot) override;
  int history_len() const override;
  Rows draft(const mx::array& hidden, const DraftToken& token, int depth)
      override;
  void append_history(const mx::array& hidden, std::span<const int32_t> ids)
      override;
  void truncate_history(int len) override;
  void reset_history(int base) override;
  ple::StagerStats row_stats() const override;
  std::vector<mx::array> leaves() const override;

 private:
  /** Attention only grows behind a snapshot, so its length is enough; holding
   *  the slabs would make the next append copy them. */
  struct Saved : Snapshot {
    state::Boundary at;
    std::optional<state::MtpState> mtp;
    std::optional<mx::array> logits;
    std::optional<mx::array> hidden;
    std::vector<state::Boundary> boundaries;
  };

  const model::Model& model_;
  state::ModelState& state_;
};

} // namespace qwenmtp::decode
