/** The multi-token prediction head (model.md 11): one attention layer that
 *  turns (hidden of position t, token t + 1) into logits for t + 2. Shares
 *  embedding and LM head with the trunk. */
#pragma once

#include <span>

#include "model/trunk.h"

namespace qwenmtp::model {

struct MtpOutput {
  mx::array logits; // [n, V]
  mx::array hidden; // [n, C * H], the head's own streams
};

class MtpHead {
 public:
  /** Whether `weights` carry a head at all. */
  static bool present(const Weights& weights);

  /** Reads every head tensor; `trunk` must outlive the head. */
  MtpHead(const Trunk& trunk, Weights& weights);

  state::MtpState initial_state() const;

  /** Appends n rows and drafts from each of them. hidden [n, C * H]: the
   *  trunk's, or this head's own for deeper drafts; embedded [n, H]: the tokens
   *  behind them. */
  MtpOutput forward(
      const mx::array& hidden,
      const mx::array& embedded,
      state::MtpState& state) const;
  /** Only the appends of forward(), with tokens ids [n]. */
  void append(
      const mx::array& hidden,
      std::span<const int32_t> ids,
      state::MtpState& state) const;

 private:
  mx::array fuse(const mx::array& hidden, const mx::array& embedded) const;

  const Trunk& trunk_;
  mx::array norm_embedding_; // [H], effective
  mx::array norm_hidden_;    // [C * H], effective
  Linear fc_embedding_;      // [H, H]
  Linear fc_hidden_;         // [H, H]
  kernels::HyperWeights attn_hyper_;
  QsaLayer qsa_;
  kernels::HyperWeights mlp_hyper_;
  MoeLayer moe_;
  kernels::HyperWeights mixer_;
};

} // namespace qwenmtp::model
