#include "scripted.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace qwenmtp::testing {

namespace mx = mlx::core;
using decode::LogitRows;
using decode::Rows;

namespace {

constexpr int kHiddenWidth = 3; // hash, tag, length

uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/** (noise - 32768) / 8192, exact in float32. */
double centred(uint32_t noise) {
  return (static_cast<double>(noise) - 32768) / 8192;
}

mx::array hidden_rows(const std::vector<int64_t>& values) {
  const int n = static_cast<int>(values.size()) / kHiddenWidth;
  return mx::array(values.begin(), {n, kHiddenWidth}, mx::int64);
}

std::vector<int64_t> read_hidden(const mx::array& hidden) {
  mx::array rows = mx::contiguous(hidden);
  rows.eval();
  const auto* p = rows.data<int64_t>();
  return {p, p + rows.size()};
}

} // namespace

uint64_t fold(uint64_t h, uint64_t t) {
  return mix(h ^ ((t + 1) * 0x9E3779B97F4A7C15u));
}

uint32_t noise(uint64_t h, uint64_t j) {
  return static_cast<uint32_t>(mix(h + (j + 1) * 0xD1342543DE82EF95u) >> 48);
}

ScriptedNetwork::ScriptedNetwork(ScriptedConfig config)
    : config_(std::move(config)) {
  state_.hashes = {config_.salt};
  state_.digests = {config_.salt};
}

std::vector<float> ScriptedNetwork::trunk_row(uint64_t hash, size_t length)
    const {
  std::vector<float> row(config_.vocab, 0.0f);
  if (config_.mode == "script") {
    row.at(config_.script.at(length)) = 30.0f;
    return row;
  }
  for (int j = 0; j < config_.vocab; j++) {
    const uint32_t n = noise(hash, j);
    row[j] = config_.mode == "ties"
                 ? static_cast<float>(static_cast<int>(n >> 13) - 4)
                 : static_cast<float>(centred(n));
  }
  return row;
}

std::vector<float> ScriptedNetwork::draft_row(
    uint64_t hash,
    size_t length,
    uint64_t digest) const {
  if (config_.mode == "script") {
    std::vector<float> row(config_.vocab, 0.0f);
    row.at(config_.draft_script.at(length)) = 30.0f;
    return row;
  }
  std::vector<float> row = trunk_row(hash, length);
  for (int j = 0; config_.amp != 0 && j < config_.vocab; j++) {
    row[j] += static_cast<float>(config_.amp * centred(noise(digest, j)));
  }
  return row;
}

mx::array ScriptedNetwork::to_array(const std::vector<float>& rows) const {
  const int n = static_cast<int>(rows.size()) / config_.vocab;
  return mx::array(rows.begin(), {n, config_.vocab}, mx::float32);
}

Rows ScriptedNetwork::forward(
    std::span<const int32_t> ids,
    LogitRows which,
    bool open_window) {
  log_.push_back({Call::trunk, {ids.begin(), ids.end()}});
  if (config_.fail_after >= 0 &&
      log_.size() > static_cast<size_t>(config_.fail_after)) {
    throw std::runtime_error("scripted forward failure");
  }
  if (window_ != 0) {
    throw std::logic_error("forward with a window still open");
  }
  std::vector<float> logits;
  std::vector<int64_t> hidden;
  for (size_t i = 0; i < ids.size(); i++) {
    state_.tokens.push_back(ids[i]);
    state_.hashes.push_back(fold(state_.hashes.back(), ids[i]));
    const size_t length = state_.tokens.size();
    const bool wanted = which == LogitRows::all ||
                        (which == LogitRows::last && i + 1 == ids.size());
    if (wanted) {
      auto row = trunk_row(state_.hashes.back(), length);
      if (config_.accept_all && i + 1 < ids.size()) {
        row[ids[i + 1]] = 100;
      }
      logits.insert(logits.end(), row.begin(), row.end());
    }
    hidden.insert(
        hidden.end(),
        {static_cast<int64_t>(state_.hashes.back()),
         0,
         static_cast<int64_t>(length)});
  }
  window_ = open_window ? static_cast<int>(ids.size()) : 0;
  Rows out{std::nullopt, hidden_rows(hidden)};
  if (which != LogitRows::none) {
    out.logits = to_array(logits);
  }
  return out;
}

void ScriptedNetwork::commit(int keep_rows) {
  log_.push_back({Call::commit, {keep_rows, window_}});
  const size_t len = state_.tokens.size() - window_ + keep_rows;
  state_.tokens.resize(len);
  state_.hashes.resize(len + 1);
  window_ = 0;
}

void ScriptedNetwork::keep_window() {
  if (window_ == 0) {
    throw std::logic_error("no window to keep");
  }
  window_ = 0;
}

std::unique_ptr<decode::Network::Snapshot> ScriptedNetwork::snapshot() const {
  return std::make_unique<Saved>(state_);
}

void ScriptedNetwork::restore(const Snapshot& snapshot) {
  state_ = dynamic_cast<const Saved&>(snapshot).state;
  window_ = 0;
}

void ScriptedNetwork::push_history(const HistoryRow& row) {
  const uint64_t digest = fold(
      fold(state_.digests.back(), row.hash),
      (static_cast<uint64_t>(row.tag) << 32) + row.token);
  state_.history.push_back(row);
  state_.digests.push_back(digest);
}

Rows ScriptedNetwork::draft(
    const mx::array& hidden,
    const decode::DraftToken& draft,
    int depth) {
  const auto* known = std::get_if<int32_t>(&draft);
  const int32_t token =
      known ? *known : mx::array(std::get<mx::array>(draft)).item<int32_t>();
  const auto h = read_hidden(hidden);
  const auto hash = static_cast<uint64_t>(h[0]);
  log_.push_back({Call::draft, {depth, h[2], h[1], token}});
  push_history({hash, h[1], h[2], token});
  const uint64_t next = fold(hash, token);
  Rows out{
      std::nullopt,
      hidden_rows({static_cast<int64_t>(next), 1, h[2] + 1})};
  out.logits = to_array(draft_row(next, h[2] + 1, state_.digests.back()));
  return out;
}

void ScriptedNetwork::append_history(
    const mx::array& hidden,
    std::span<const int32_t> ids) {
  const auto h = read_hidden(hidden);
  Call call{Call::history, {}};
  for (size_t i = 0; i < ids.size(); i++) {
    const auto* row = &h[i * kHiddenWidth];
    push_history({static_cast<uint64_t>(row[0]), row[1], row[2], ids[i]});
    call.numbers.insert(call.numbers.end(), {row[2], row[1], ids[i]});
  }
  log_.push_back(call);
}

void ScriptedNetwork::truncate_history(int len) {
  state_.history.resize(len);
  state_.digests.resize(len + 1);
}

void ScriptedNetwork::reset_history(int /* base */) {
  truncate_history(0);
}

bool ScriptedNetwork::is_last_row(const mx::array& logits) const {
  const auto row =
      to_array(trunk_row(state_.hashes.back(), state_.tokens.size()));
  return mx::array_equal(logits, row).item<bool>();
}

bool ScriptedNetwork::is_last_hidden(const mx::array& hidden) const {
  const std::vector<int64_t> want{
      static_cast<int64_t>(state_.hashes.back()),
      0,
      static_cast<int64_t>(state_.tokens.size())};
  return read_hidden(hidden) == want;
}

} // namespace qwenmtp::testing
