#include "bindings/decode_values.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <functional>
#include <map>

#include "base/error.h"
#include "bindings/ple_values.h"

namespace nb = nanobind;

namespace qwenmtp::bindings {

namespace {

using decode::Options;

using Setter = std::function<void(Options&, nb::handle)>;

template <typename T>
Setter field(T Options::*member) {
  return [member](Options& o, nb::handle v) { o.*member = nb::cast<T>(v); };
}

sampling::Params to_params(nb::handle value) {
  const auto [temperature, top_p, top_k, presence, frequency] =
      nb::cast<std::tuple<double, double, int64_t, double, double>>(value);
  return {temperature, top_p, top_k, presence, frequency};
}

template <typename T>
T choice(
    nb::handle value,
    const char* name,
    const std::map<std::string, T>& names) {
  const auto key = nb::cast<std::string>(value);
  const auto it = names.find(key);
  if (it == names.end()) {
    throw InvalidArgument(
        std::string("[decoder] ") + name + " '" + key +
        "', expected one of its documented names");
  }
  return it->second;
}

template <typename T>
Setter repetition(T decode::RepetitionOptions::*member) {
  return [member](Options& o, nb::handle v) {
    o.repetition.*member = nb::cast<T>(v);
  };
}

const std::map<std::string, Setter>& setters() {
  using R = decode::RepetitionOptions;
  static const std::map<std::string, Setter> table = {
      {"target", [](Options& o, nb::handle v) { o.target = to_params(v); }},
      {"draft",
       [](Options& o, nb::handle v) {
         if (!v.is_none()) {
           o.draft = to_params(v);
         }
       }},
      {"seed",
       [](Options& o, nb::handle v) {
         o.seed = seed_words(nb::cast<nb::int_>(v));
       }},
      {"max_tokens", field(&Options::max_tokens)},
      {"stops",
       [](Options& o, nb::handle v) {
         const auto ids = nb::cast<std::vector<int32_t>>(v);
         o.stops = {ids.begin(), ids.end()};
       }},
      {"speculate", field(&Options::speculate)},
      {"depth", field(&Options::depth)},
      {"auto_depth", field(&Options::auto_depth)},
      {"lane",
       [](Options& o, nb::handle v) {
         o.lane = choice<decode::Lane>(
             v,
             "lane",
             {{"capture_commit", decode::Lane::capture_commit},
              {"reforward", decode::Lane::reforward}});
       }},
      {"history",
       [](Options& o, nb::handle v) {
         o.history = choice<decode::History>(
             v,
             "history",
             {{"committed", decode::History::committed},
              {"cycle", decode::History::cycle}});
       }},
      {"history_reset_rows", field(&Options::history_reset_rows)},
      {"context_copy", field(&Options::context_copy)},
      {"block_verify", field(&Options::block_verify)},
      {"relaxed_draft_ties", field(&Options::relaxed_draft_ties)},
      {"final_commit", field(&Options::final_commit)},
      {"async", field(&Options::async)},
      {"device_candidates",
       [](Options& o, nb::handle v) {
         if (!v.is_none()) {
           o.device_candidates = nb::cast<bool>(v);
         }
       }},
      {"prefill_chunk",
       [](Options& o, nb::handle v) { o.prefill.chunk = nb::cast<int>(v); }},
      {"history_window",
       [](Options& o, nb::handle v) {
         o.prefill.history_window = nb::cast<int>(v);
       }},
      {"fused_suffix",
       [](Options& o, nb::handle v) {
         o.prefill.fused_suffix = nb::cast<int>(v);
       }},
      {"boundaries",
       [](Options& o, nb::handle v) {
         o.prefill.boundaries = nb::cast<std::vector<int>>(v);
       }},
      {"logprobs", field(&Options::logprobs)},
      {"deadline",
       [](Options& o, nb::handle v) {
         using Clock = std::chrono::steady_clock;
         if (!v.is_none()) {
           o.deadline = Clock::now() +
                        std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(nb::cast<double>(v)));
         }
       }},
      {"repetition_stop", repetition(&R::armed)},
      {"repetition_min_tokens", repetition(&R::min_tokens)},
      {"repetition_min_repeated_tokens", repetition(&R::min_repeated_tokens)},
      {"repetition_min_repeats", repetition(&R::min_repeats)},
      {"repetition_min_block_tokens", repetition(&R::min_block_tokens)},
      {"repetition_max_block_tokens", repetition(&R::max_block_tokens)},
      {"repetition_max_cycle_tokens", repetition(&R::max_cycle_tokens)},
      {"repetition_min_cycle_copies", repetition(&R::min_cycle_copies)},
      {"repetition_min_cycle_span_tokens",
       repetition(&R::min_cycle_span_tokens)},
      {"repetition_holdback",
       [](Options& o, nb::handle v) {
         o.repetition.holdback = choice<decode::Holdback>(
             v,
             "repetition_holdback",
             {{"off", decode::Holdback::off},
              {"candidate", decode::Holdback::candidate},
              {"strict", decode::Holdback::strict}});
       }},
  };
  return table;
}

} // namespace

std::vector<uint32_t> seed_words(const nb::int_& seed) {
  if (seed < nb::int_(0)) {
    throw InvalidArgument(
        "[decoder] negative seed, expected a non-negative integer");
  }
  const auto bits = nb::cast<size_t>(seed.attr("bit_length")());
  std::vector<uint32_t> words(bits / 32 + 1);
  const nb::bytes bytes(seed.attr("to_bytes")(4 * words.size(), "little"));
  std::memcpy(words.data(), bytes.c_str(), 4 * words.size());
  return words;
}

Options to_options(const nb::dict& values) {
  Options options;
  for (const auto& [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    const auto it = setters().find(name);
    if (it == setters().end()) {
      throw InvalidArgument("[decoder] unknown option '" + name + "'");
    }
    it->second(options, value);
  }
  return options;
}

nb::dict to_dict(const decode::Released& released) {
  nb::dict out;
  out["ids"] = released.ids;
  nb::list logprobs;
  for (const auto& entry : released.logprobs) {
    logprobs.append(nb::make_tuple(entry.value, entry.top));
  }
  out["logprobs"] = logprobs;
  out["drafted"] = released.drafted;
  out["accepted"] = released.accepted;
  return out;
}

nb::dict to_dict(const decode::Statistics& s) {
  nb::dict out;
  out["rounds"] = s.rounds;
  out["syncs"] = s.syncs;
  out["drafted_tokens"] = s.drafted_tokens;
  out["accepted_drafts"] = s.accepted_drafts;
  out["rejected_drafts"] = s.rejected_drafts;
  out["drafted_by_depth"] = s.drafted_by_depth;
  out["tested_by_depth"] = s.tested_by_depth;
  out["accepted_by_depth"] = s.accepted_by_depth;
  out["accept_probability_sum_by_depth"] = s.accept_probability_sum_by_depth;
  out["bonus_tokens"] = s.bonus_tokens;
  out["correction_tokens"] = s.correction_tokens;
  out["deferred_correction_repairs"] = s.deferred_correction_repairs;
  out["capture_commits"] = s.capture_commits;
  out["reforward_repairs"] = s.reforward_repairs;
  out["verify_calls"] = s.verify_calls;
  out["mtp_history_live_resets"] = s.history_live_resets;
  out["rounds_by_depth"] = s.rounds_by_depth;
  out["expected_tokens"] = s.expected_tokens;
  out["prompt_tokens"] = s.prompt_tokens;
  out["cached_tokens"] = s.cached_tokens;
  out["context_copy_active"] = s.copy.active;
  out["context_copy_probes"] = s.copy.probes;
  out["context_copy_rounds"] = s.copy.rounds;
  out["context_copy_drafted_tokens"] = s.copy.drafted_tokens;
  out["context_copy_accepted_tokens"] = s.copy.accepted_tokens;
  out["context_copy_accepted_blocks"] = s.copy.accepted_blocks;
  out["context_copy_suspensions"] = s.copy.suspensions;
  out["context_copy_suspended"] = s.copy.suspended;
  out["context_copy_backoff_tokens"] = s.copy.backoff_tokens;
  out["context_copy_disabled_reason"] = s.copy.disabled_reason;
  out["repetition_stop_triggered"] = !s.repetition.reason.empty();
  out["repetition_stop_reason"] = s.repetition.reason;
  out["repetition_stop_block_tokens"] = s.repetition.block_tokens;
  out["repetition_stop_repeats"] = s.repetition.repeats;
  out["repetition_stop_trimmed_tokens"] = s.repetition.trimmed_tokens;
  out["repetition_stop_raw_tokens"] = s.repetition.raw_tokens;
  out["lane"] = s.lane;
  out["ple"] = to_dict(s.rows);
  nb::dict seconds;
  seconds["prefill"] = s.seconds.prefill;
  seconds["prefill_history"] = s.seconds.prefill_history;
  seconds["decode"] = s.seconds.decode;
  seconds["draft"] = s.seconds.draft;
  seconds["verify"] = s.seconds.verify;
  seconds["accept"] = s.seconds.accept;
  seconds["bonus"] = s.seconds.bonus;
  seconds["commit"] = s.seconds.commit;
  seconds["rollback"] = s.seconds.rollback;
  seconds["repair"] = s.seconds.repair;
  seconds["final_commit"] = s.seconds.final_commit;
  out["seconds"] = seconds;
  return out;
}

const char* to_name(decode::Finish finish) {
  switch (finish) {
    case decode::Finish::none:
      return "none";
    case decode::Finish::stop:
      return "stop";
    case decode::Finish::length:
      return "length";
    case decode::Finish::cancelled:
      return "cancelled";
    case decode::Finish::deadline:
      return "deadline";
  }
  return "none";
}

const char* to_name(decode::StopOrigin origin) {
  switch (origin) {
    case decode::StopOrigin::unknown:
      return "unknown";
    case decode::StopOrigin::primary:
      return "primary";
    case decode::StopOrigin::accepted_draft:
      return "accepted_draft";
    case decode::StopOrigin::residual_correction:
      return "residual_correction";
    case decode::StopOrigin::bonus:
      return "bonus";
    case decode::StopOrigin::context_copy:
      return "context_copy";
    case decode::StopOrigin::repetition_stop:
      return "repetition_stop";
  }
  return "unknown";
}

} // namespace qwenmtp::bindings
