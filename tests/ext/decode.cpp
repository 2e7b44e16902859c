/** The decode loops over the scripted network. */
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "arrays.h"
#include "bindings/decode_values.h"
#include "convert.h"
#include "decode/row_reader.h"
#include "scripted.h"
#include "testing.h"

namespace nb = nanobind;
using namespace qwenmtp;
using qwenmtp::testing::ScriptedConfig;
using qwenmtp::testing::ScriptedNetwork;

namespace {

/** A decoder, and the tip that a next one on the same network starts from. */
struct ScriptedDecoder {
  ScriptedDecoder(
      std::shared_ptr<ScriptedNetwork> net,
      const nb::dict& options,
      std::vector<int32_t> prompt,
      const ScriptedDecoder* previous)
      : network(std::move(net)),
        decoder(
            *network,
            bindings::to_options(options),
            std::move(prompt),
            previous ? previous->last_rows() : decode::LastRows()) {
  }

  decode::LastRows last_rows() const {
    if (!tip) {
      return {};
    }
    return {
        tip->logits_row(),
        tip->hidden ? std::optional(tip->hidden_row()) : std::nullopt};
  }

  std::shared_ptr<ScriptedNetwork> network;
  decode::Decoder decoder;
  std::optional<decode::Tip> tip;
};

nb::list call_list(const ScriptedNetwork::Call& call) {
  using Call = ScriptedNetwork::Call;
  nb::list out;
  switch (call.kind) {
    case Call::trunk:
      out.append("trunk");
      out.append(call.numbers);
      return out;
    case Call::history: {
      out.append("history");
      nb::list rows;
      for (size_t i = 0; i < call.numbers.size(); i += 3) {
        rows.append(std::vector<int64_t>(
            call.numbers.begin() + i,
            call.numbers.begin() + i + 3));
      }
      out.append(rows);
      return out;
    }
    case Call::draft:
      out.append("draft");
      break;
    case Call::commit:
      out.append("commit_window");
      break;
  }
  for (int64_t number : call.numbers) {
    out.append(number);
  }
  return out;
}

nb::dict final_dict(ScriptedDecoder& self) {
  const decode::Final final = self.decoder.finish();
  self.tip = final.tip;
  nb::dict out;
  out["present"] = final.present;
  out["safe"] = final.safe;
  out["pending"] = final.pending;
  out["error"] = final.error;
  if (final.tip) {
    out["logits_are_row_after_trunk"] =
        self.network->is_last_row(final.tip->logits_row());
    out["hidden_is_row_after_trunk"] =
        final.tip->hidden
            ? nb::cast(self.network->is_last_hidden(final.tip->hidden_row()))
            : nb::none();
  }
  return out;
}

/** How often each answer comes up over seeds 0 .. runs - 1. */
std::vector<std::pair<std::vector<int32_t>, int>> count_answers(
    const ScriptedConfig& config,
    const nb::dict& options,
    const std::vector<int32_t>& prompt,
    int runs) {
  std::map<std::vector<int32_t>, int> counts;
  decode::Options request = bindings::to_options(options);
  const nb::gil_scoped_release release;
  for (int seed = 0; seed < runs; seed++) {
    request.seed = {static_cast<uint32_t>(seed)};
    ScriptedNetwork network(config);
    decode::Decoder decoder(network, request, prompt);
    while (!decoder.done()) {
      decoder.advance();
    }
    counts[decoder.tokens()]++;
  }
  return {counts.begin(), counts.end()};
}

} // namespace

void register_decode(nb::module_& m) {
  nb::class_<ScriptedConfig>(m, "ScriptedConfig")
      .def(nb::init<>())
      .def_rw("salt", &ScriptedConfig::salt)
      .def_rw("vocab", &ScriptedConfig::vocab)
      .def_rw("mode", &ScriptedConfig::mode)
      .def_rw("amp", &ScriptedConfig::amp)
      .def_rw("script", &ScriptedConfig::script)
      .def_rw("draft_script", &ScriptedConfig::draft_script)
      .def_rw("accept_all", &ScriptedConfig::accept_all)
      .def_rw("fail_after", &ScriptedConfig::fail_after);

  nb::class_<ScriptedNetwork>(m, "ScriptedNetwork")
      .def(nb::init<ScriptedConfig>())
      .def("fail_after", &ScriptedNetwork::fail_after)
      .def("clear_log", &ScriptedNetwork::clear_log)
      .def_prop_ro("tokens", &ScriptedNetwork::tokens)
      .def_prop_ro(
          "log",
          [](const ScriptedNetwork& n) {
            nb::list out;
            for (const auto& call : n.log()) {
              out.append(call_list(call));
            }
            return out;
          })
      .def_prop_ro("history", [](const ScriptedNetwork& n) {
        nb::list out;
        for (const auto& row : n.history()) {
          out.append(std::vector<int64_t>{row.length, row.tag, row.token});
        }
        return out;
      });

  nb::class_<ScriptedDecoder>(m, "ScriptedDecoder")
      .def(
          nb::init<
              std::shared_ptr<ScriptedNetwork>,
              const nb::dict&,
              std::vector<int32_t>,
              const ScriptedDecoder*>(),
          nb::arg("network"),
          nb::arg("options"),
          nb::arg("prompt"),
          nb::arg("previous") = nb::none())
      .def("prefill", [](ScriptedDecoder& d) { return d.decoder.prefill(); })
      .def(
          "advance",
          [](ScriptedDecoder& d) {
            return bindings::to_dict(d.decoder.advance());
          })
      .def(
          "step",
          [](ScriptedDecoder& d) {
            return bindings::to_dict(d.decoder.step());
          })
      .def(
          "drain",
          [](ScriptedDecoder& d) {
            const nb::gil_scoped_release release;
            while (!d.decoder.done()) {
              d.decoder.advance();
            }
          })
      .def("finish", &final_dict)
      .def("cancel", [](ScriptedDecoder& d) { d.decoder.cancel(); })
      .def("abandon", [](ScriptedDecoder& d) { d.decoder.abandon(); })
      .def_prop_ro(
          "prefilled",
          [](ScriptedDecoder& d) { return d.decoder.prefilled(); })
      .def_prop_ro("done", [](ScriptedDecoder& d) { return d.decoder.done(); })
      .def_prop_ro(
          "tokens",
          [](ScriptedDecoder& d) { return d.decoder.tokens(); })
      .def_prop_ro(
          "trace",
          [](ScriptedDecoder& d) { return d.decoder.draws().trace(); })
      .def_prop_ro(
          "generator_state",
          [](ScriptedDecoder& d) {
            return testing::to_int(d.decoder.draws().generator().state());
          })
      .def_prop_ro(
          "finish_reason",
          [](ScriptedDecoder& d) {
            return bindings::to_name(d.decoder.finish_reason());
          })
      .def_prop_ro(
          "stop_origin",
          [](ScriptedDecoder& d) {
            return bindings::to_name(d.decoder.stop_origin());
          })
      .def_prop_ro("statistics", [](ScriptedDecoder& d) {
        return bindings::to_dict(d.decoder.statistics());
      });

  nb::class_<decode::HostRows>(m, "HostRows")
      .def("__init__", [](decode::HostRows* self, const testing::NumPy& rows) {
        new (self) decode::HostRows(testing::to_mlx(rows));
      });
  nb::class_<decode::RowReader>(m, "RowReader")
      .def(
          "__init__",
          [](decode::RowReader* self,
             const sampling::Params& params,
             bool on_device,
             bool relaxed) {
            new (self) decode::RowReader(
                params,
                on_device,
                relaxed ? sampling::Ties::relaxed : sampling::Ties::exact);
          })
      .def(
          "distribution",
          [](decode::RowReader& self,
             const decode::HostRows& rows,
             int row,
             const std::optional<sampling::TokenCounts>& counts,
             bool once) {
            return self.distribution(
                rows,
                row,
                {counts ? &*counts : nullptr, {}},
                once ? sampling::Normalise::once : sampling::Normalise::twice);
          },
          nb::arg("rows"),
          nb::arg("row"),
          nb::arg("counts") = nb::none(),
          nb::arg("once") = false)
      .def(
          "best",
          [](decode::RowReader& self, const decode::HostRows& rows, int row) {
            return self.best(rows, row);
          })
      .def(
          "argmax",
          [](decode::RowReader& self, const decode::HostRows& rows, int row) {
            return self.argmax(rows, row);
          });

  nb::class_<decode::DepthPolicy>(m, "DepthPolicy")
      .def(nb::init<int, bool>())
      .def("next", &decode::DepthPolicy::next)
      .def("expected_tokens", &decode::DepthPolicy::expected_tokens)
      .def(
          "record",
          [](decode::DepthPolicy& policy,
             int depth,
             int tested,
             int accepted,
             double draft_seconds,
             double verify_seconds) {
            policy.record(
                {depth, tested, accepted, draft_seconds, verify_seconds});
          });

  nb::class_<decode::Repetition>(m, "Repetition")
      .def(
          "__init__",
          [](decode::Repetition* self, const nb::dict& options) {
            new (self)
                decode::Repetition(bindings::to_options(options).repetition);
          })
      .def(
          "check",
          [](decode::Repetition& r,
             const std::vector<int32_t>& tokens) -> nb::object {
            const auto hit = r.check(tokens);
            if (!hit) {
              return nb::none();
            }
            return nb::make_tuple(
                hit->reason,
                hit->block_tokens,
                hit->repeats,
                hit->trimmed_tokens);
          })
      .def("releasable", &decode::Repetition::releasable);

  m.def("count_answers", &count_answers);
  m.def("fold", &testing::fold);
  m.def("noise", &testing::noise);
}
