/** Brings the trunk and the draft history to the end of a prompt, one chunk per
 *  step, behind whatever prefix the network already holds. */
#pragma once

#include <optional>
#include <vector>

#include "decode/network.h"
#include "decode/options.h"
#include "decode/rows.h"
#include "decode/statistics.h"

namespace qwenmtp::decode {

class Prefill {
 public:
  /** prompt: all ids; the network holds its first trunk_len(). stored: the last
   *  rows of that prefix; its hidden is needed when it is not empty and the
   *  history goes on, both when it is the whole prompt. keep_hidden: the tip
   *  needs its hidden, because drafts follow. Throws InvalidArgument for an
   *  empty prompt or a missing row. */
  Prefill(
      Network& network,
      std::vector<int32_t> prompt,
      LastRows stored,
      const PrefillOptions& options,
      bool keep_history,
      bool keep_hidden);

  bool done() const {
    return done_;
  }

  /** Before the first step: records the prefix as a boundary, if it is one. */
  void mark_prefix();

  /** One forward and its evaluation. Returns the tokens the trunk now holds. */
  int step(Times& times);

  /** After done(). */
  const Tip& tip() const {
    return *tip_;
  }

 private:
  void body(int n, Times& times);
  void last(int n, Times& times);
  void append(const mx::array& hidden, int first_id, int n, Times& times);
  bool is_boundary(int len) const;

  Network& network_;
  std::vector<int32_t> prompt_;
  LastRows stored_;
  std::vector<int> boundaries_;
  std::optional<Tip> tip_;
  bool keep_history_;
  bool keep_hidden_;
  int chunk_;
  /** First row of the draft history that the prompt keeps. */
  int first_row_;
  bool warm_;
  /** The suffix is short: one forward of all its tokens. */
  bool fused_;
  bool done_ = false;
  /** Hidden rows of a cold prompt's only body chunk: their history rows are
   *  appended in one call after the last token's forward. */
  std::optional<mx::array> whole_body_;
};

} // namespace qwenmtp::decode
