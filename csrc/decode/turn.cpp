#include "decode/turn.h"

#include <algorithm>

namespace qwenmtp::decode {

Turn::Turn(Network& network, Options options, std::vector<int32_t> prompt)
    : network(network),
      options(std::move(options)),
      prompt(std::move(prompt)),
      draws(sampling::Pcg64(this->options.seed)),
      target(this->options.target),
      draft(this->options.draft.value_or(this->options.target)
                .without_penalties()),
      repetition_(this->options.repetition) {
}

void Turn::poll() const {
  if (cancelled) {
    throw Interrupted{Finish::cancelled};
  }
  if (options.deadline &&
      std::chrono::steady_clock::now() >= *options.deadline) {
    throw Interrupted{Finish::deadline};
  }
}

int32_t Turn::sample(sampling::RowView row) {
  if (greedy()) {
    return target.best(row, steering());
  }
  return draws.token(target.distribution(row, steering()));
}

void Turn::append(int32_t token, sampling::RowView row) {
  tokens.push_back(token);
  if (options.target.penalised()) {
    counts[token]++;
  }
  if (options.logprobs >= 0) {
    logprobs_.push_back(target.log_probability(row, token, options.logprobs));
  }
}

void Turn::release_until(size_t end) {
  for (; released_ < end; released_++) {
    if (is_stop(tokens[released_])) {
      continue;
    }
    batch.push_back(tokens[released_]);
    if (options.logprobs >= 0) {
      batch_logprobs.push_back(logprobs_[released_]);
    }
  }
}

void Turn::release() {
  release_until(repetition_.releasable(tokens));
}

void Turn::flush() {
  release_until(tokens.size());
}

bool Turn::repeats() {
  const auto hit = repetition_.check(tokens);
  if (!hit) {
    return false;
  }
  statistics.repetition = {
      hit->reason,
      hit->block_tokens,
      hit->repeats,
      hit->trimmed_tokens,
      static_cast<int64_t>(tokens.size())};
  tokens.resize(tokens.size() - hit->trimmed_tokens);
  released_ = std::min(released_, tokens.size());
  stop_origin = StopOrigin::repetition_stop;
  repeated = true;
  return true;
}

} // namespace qwenmtp::decode
