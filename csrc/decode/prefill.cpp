#include "decode/prefill.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "decode/sync.h"

namespace qwenmtp::decode {

Prefill::Prefill(
    Network& network,
    std::vector<int32_t> prompt,
    LastRows stored,
    const PrefillOptions& options,
    bool keep_history,
    bool keep_hidden)
    : network_(network),
      prompt_(std::move(prompt)),
      stored_(std::move(stored)),
      boundaries_(options.boundaries),
      keep_history_(keep_history),
      keep_hidden_(keep_hidden),
      chunk_(options.chunk),
      first_row_(
          options.history_window > 0
              ? static_cast<int>(prompt_.size()) - 1 - options.history_window
              : 0),
      warm_(network.trunk_len() > 0),
      fused_(
          warm_ && static_cast<int>(prompt_.size()) - network.trunk_len() <=
                       options.fused_suffix) {
  const int len = static_cast<int>(prompt_.size());
  const int held = network.trunk_len();
  if (len == 0) {
    throw InvalidArgument(
        "[prefill] empty prompt, expected at least one token");
  }
  if (held > len) {
    throw InvalidArgument(
        "[prefill] prefix of " + std::to_string(held) +
        " tokens behind a prompt of " + std::to_string(len));
  }
  done_ = held == len;
  const bool needs_hidden = (done_ && keep_hidden_) || (warm_ && keep_history_);
  if ((done_ && !stored_.logits) || (needs_hidden && !stored_.hidden)) {
    throw InvalidArgument(
        "[prefill] prefix without its last row and hidden, expected both");
  }
  if (done_) {
    tip_ = Tip{std::make_shared<HostRows>(*stored_.logits), stored_.hidden, 0};
  }
}

bool Prefill::is_boundary(int len) const {
  return std::ranges::binary_search(boundaries_, len);
}

void Prefill::mark_prefix() {
  if (warm_ && is_boundary(network_.trunk_len())) {
    network_.mark(stored_.hidden);
  }
}

int Prefill::step(Times& times) {
  const Stopwatch watch(times.prefill);
  const int held = network_.trunk_len();
  const int left = static_cast<int>(prompt_.size()) - held;
  const LastRows stored = std::exchange(stored_, {});
  if (keep_history_ && stored.hidden) {
    append(*stored.hidden, held, 1, times);
  }
  if (left == 1 || fused_) {
    last(left, times);
    return network_.trunk_len();
  }
  int n = chunk_ > 0 ? std::min(chunk_, left - 1) : left - 1;
  const auto next = std::ranges::upper_bound(boundaries_, held);
  if (next != boundaries_.end()) {
    n = std::min(n, *next - held);
  }
  body(n, times);
  return network_.trunk_len();
}

/** n tokens that are not the last: cache-only. */
void Prefill::body(int n, Times& times) {
  const int begin = network_.trunk_len();
  const auto ids = std::span(prompt_).subspan(begin, n);
  const mx::array hidden = network_.forward(ids, LogitRows::none, false).hidden;
  network_.expect(std::span(prompt_).subspan(
      begin + n,
      std::min<size_t>(n, prompt_.size() - begin - n)));
  if (keep_history_) {
    const bool whole = begin == 0 && n + 1 == static_cast<int>(prompt_.size());
    if (whole) {
      whole_body_ = hidden;
    } else {
      append(hidden, begin + 1, n, times);
    }
  }
  auto arrays = network_.leaves();
  arrays.push_back(hidden);
  sync(arrays);
  if (is_boundary(begin + n)) {
    network_.mark(slice_rows(hidden, n - 1, n));
  }
}

/** The last n tokens: one for a cold prompt, so that its row is that of a
 *  one-row forward; all of a short suffix. */
void Prefill::last(int n, Times& times) {
  const int begin = network_.trunk_len();
  const auto ids = std::span(prompt_).subspan(begin, n);
  const Rows rows = network_.forward(ids, LogitRows::last, false);
  if (whole_body_) {
    append(*whole_body_, 1, begin, times);
    whole_body_.reset();
  }
  if (keep_history_ && n > 1) {
    append(slice_rows(rows.hidden, 0, n - 1), begin + 1, n - 1, times);
  }
  tip_ = Tip{std::make_shared<HostRows>(*rows.logits), std::nullopt, 0};
  if (keep_hidden_) {
    tip_->hidden = slice_rows(rows.hidden, n - 1, n);
  }
  auto arrays = network_.leaves();
  arrays.push_back(*rows.logits);
  if (tip_->hidden) {
    arrays.push_back(*tip_->hidden);
  }
  sync(arrays);
  done_ = true;
}

/** History rows (hidden[i], prompt[first_id + i]), without those before the
 *  window and then without all that came before. */
void Prefill::append(
    const mx::array& hidden,
    int first_id,
    int n,
    Times& times) {
  const Stopwatch watch(times.prefill_history);
  const int row = first_id - 1;
  const int skip = std::clamp(first_row_ - row, 0, n);
  if (skip > 0) {
    network_.reset_history(row + skip);
  }
  if (skip < n) {
    network_.append_history(
        skip > 0 ? slice_rows(hidden, skip, n) : hidden,
        std::span(prompt_).subspan(first_id + skip, n - skip));
  }
}

} // namespace qwenmtp::decode
