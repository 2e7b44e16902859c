#include "decode/null_network.h"

#include "decode/rows.h"

namespace qwenmtp::decode {

NullNetwork::NullNetwork(const mx::array& rows) : n_rows_(rows.shape(0)) {
  const mx::array twice = mx::concatenate({rows, rows}, 0);
  for (int n = 1; n <= n_rows_; n++) {
    for (int first = 0; first < n_rows_; first++) {
      windows_.push_back(slice_rows(twice, first, first + n));
    }
    hidden_.push_back(mx::zeros({n, 1}));
  }
  mx::eval(windows_);
  mx::eval(hidden_);
}

const mx::array& NullNetwork::rows_at(int position, int n) const {
  return windows_[n_rows_ * (n - 1) + position % n_rows_];
}

Rows NullNetwork::forward(
    std::span<const int32_t> ids,
    LogitRows which,
    bool open_window) {
  const int n = static_cast<int>(ids.size());
  const int position = len_;
  len_ += n;
  window_ = open_window ? n : 0;
  Rows out{std::nullopt, hidden_[n - 1]};
  if (which == LogitRows::all) {
    out.logits = rows_at(position, n);
  } else if (which == LogitRows::last) {
    out.logits = rows_at(len_ - 1, 1);
  }
  return out;
}

std::unique_ptr<Network::Snapshot> NullNetwork::snapshot() const {
  auto out = std::make_unique<Saved>();
  out->len = len_;
  out->history_len = history_len_;
  return out;
}

void NullNetwork::restore(const Snapshot& snapshot) {
  const auto& saved = dynamic_cast<const Saved&>(snapshot);
  len_ = saved.len;
  history_len_ = saved.history_len;
}

Rows NullNetwork::draft(
    const mx::array& /* hidden */,
    const DraftToken& /* token */,
    int depth) {
  history_len_++;
  return {rows_at(len_ + depth - 1, 1), hidden_[0]};
}

void NullNetwork::append_history(
    const mx::array& /* hidden */,
    std::span<const int32_t> ids) {
  history_len_ += static_cast<int>(ids.size());
}

} // namespace qwenmtp::decode
