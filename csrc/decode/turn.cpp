#include "decode/turn.h"

#include <algorithm>

namespace qwenmtp::decode {

namespace {

bool on_device(const Options& options) {
  return options.device_candidates.value_or(
      mx::default_device() != mx::Device::cpu);
}

} // namespace

Turn::Turn(Network& network, Options options, std::vector<int32_t> prompt)
    : network(network),
      options(std::move(options)),
      prompt(std::move(prompt)),
      draws(sampling::Pcg64(this->options.seed)),
      target(this->options.target, on_device(this->options)),
      draft(
          this->options.draft.value_or(this->options.target)
              .without_penalties(),
          on_device(this->options),
          this->options.relaxed_draft_ties ? sampling::Ties::relaxed
                                           : sampling::Ties::exact),
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

int32_t Turn::sample(const HostRows& rows, int row) {
  if (greedy()) {
    return target.best(rows, row, steering());
  }
  return draws.token(target.distribution(rows, row, steering()));
}

void Turn::append(int32_t token, const HostRows& rows, int row) {
  tokens.push_back(token);
  if (options.target.penalised()) {
    counts[token]++;
  }
  if (options.logprobs >= 0) {
    logprobs_.push_back(
        target.log_probability(rows, row, token, options.logprobs));
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
