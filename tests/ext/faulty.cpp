/** A real model with one thing wrong, for tests that must notice it; and one
 *  whose logits follow a script, for endings that must happen. */
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/decoder_steps.h"
#include "decode/model_network.h"
#include "decode/state_decoder.h"
#include "testing.h"

namespace nb = nanobind;
using namespace qwenmtp;

namespace {

namespace mx = mlx::core;

class FaultyNetwork : public decode::ModelNetwork {
 public:
  FaultyNetwork(
      const model::Model& model,
      state::ModelState& state,
      std::string fault)
      : ModelNetwork(model, state), fault_(std::move(fault)) {
  }

  decode::Rows forward(
      std::span<const int32_t> ids,
      decode::LogitRows which,
      bool open_window) override {
    // A one-token forward behind a held row is the final commit.
    if (ids.size() == 1 && !open_window) {
      held_.reset();
    }
    flush();
    auto rows = ModelNetwork::forward(ids, which, open_window);
    if (fault_ == "accept_every_draft" && open_window) {
      for (int i = 0; i + 1 < static_cast<int>(ids.size()); i++) {
        rows.logits = mx::slice_update(
            *rows.logits,
            mx::full({1, 1}, 1e4f, rows.logits->dtype()),
            mx::Shape{i, ids[i + 1]},
            mx::Shape{i + 1, ids[i + 1] + 1});
      }
    }
    window_ = open_window ? static_cast<int>(ids.size()) : 0;
    return rows;
  }

  void commit(int keep_rows) override {
    const bool more = fault_ == "commit_one_row_more" && keep_rows < window_;
    ModelNetwork::commit(keep_rows + more);
  }

  decode::Rows draft(
      const mx::array& hidden,
      const decode::DraftToken& token,
      int depth) override {
    flush();
    return ModelNetwork::draft(hidden, token, depth);
  }

  void append_history(const mx::array& hidden, std::span<const int32_t> ids)
      override {
    flush();
    const int n = static_cast<int>(ids.size());
    if (fault_ == "final_history_row_missing" && n == 1) {
      held_ = {hidden, ids[0]};
    } else if (fault_ == "chunk_last_row_dropped" && n > 1) {
      ModelNetwork::append_history(
          decode::slice_rows(hidden, 0, n - 1),
          ids.first(n - 1));
    } else {
      ModelNetwork::append_history(hidden, ids);
    }
  }

 private:
  void flush() {
    if (held_) {
      ModelNetwork::append_history(held_->first, {&held_->second, 1});
      held_.reset();
    }
  }

  std::string fault_;
  int window_ = 0;
  std::optional<std::pair<mx::array, int32_t>> held_;
};

/** Caches and hiddens are the model's; logits point at the script: after n
 *  tokens the next is script[n], and the head drafts draft_script. */
class ScriptedLogits : public decode::ModelNetwork {
 public:
  ScriptedLogits(
      const model::Model& model,
      state::ModelState& state,
      std::vector<int32_t> script,
      std::vector<int32_t> draft_script)
      : ModelNetwork(model, state),
        script_(std::move(script)),
        draft_script_(std::move(draft_script)) {
  }

  decode::Rows forward(
      std::span<const int32_t> ids,
      decode::LogitRows which,
      bool open_window) override {
    auto rows = ModelNetwork::forward(ids, which, open_window);
    if (rows.logits) {
      const int n = rows.logits->shape(0);
      for (int i = 0; i < n; i++) {
        point(*rows.logits, i, script_.at(trunk_len() - n + 1 + i));
      }
    }
    return rows;
  }

  decode::Rows draft(
      const mx::array& hidden,
      const decode::DraftToken& token,
      int depth) override {
    auto rows = ModelNetwork::draft(hidden, token, depth);
    point(*rows.logits, 0, draft_script_.at(trunk_len() + depth));
    return rows;
  }

 private:
  static void point(mx::array& logits, int row, int32_t token) {
    logits = mx::slice_update(
        logits,
        mx::full({1, 1}, 1e4f, logits.dtype()),
        mx::Shape{row, token},
        mx::Shape{row + 1, token + 1});
  }

  std::vector<int32_t> script_;
  std::vector<int32_t> draft_script_;
};

/** _core.Decoder with scripted logits. */
class ScriptedModelDecoder : public decode::StateDecoder {
 public:
  ScriptedModelDecoder(
      const model::Model& model,
      state::ModelState& state,
      std::vector<int32_t> prompt,
      const nb::dict& options,
      std::vector<int32_t> script,
      std::vector<int32_t> draft_script)
      : StateDecoder(
            std::make_unique<ScriptedLogits>(
                model,
                state,
                std::move(script),
                std::move(draft_script)),
            state,
            std::move(prompt),
            bindings::to_options(options)) {
  }
};

/** _core.Decoder with a fault. */
class FaultyDecoder : public decode::StateDecoder {
 public:
  FaultyDecoder(
      const model::Model& model,
      state::ModelState& state,
      std::vector<int32_t> prompt,
      const nb::dict& options,
      const std::string& fault)
      : StateDecoder(
            std::make_unique<FaultyNetwork>(model, state, fault),
            state,
            std::move(prompt),
            bindings::to_options(options)) {
  }
};

} // namespace

void register_faulty(nb::module_& m) {
  m.attr("FAULTS") = nb::make_tuple(
      "accept_every_draft",
      "commit_one_row_more",
      "final_history_row_missing",
      "chunk_last_row_dropped");
  nb::class_<FaultyDecoder> decoder(m, "FaultyDecoder");
  decoder.def(
      nb::init<
          const model::Model&,
          state::ModelState&,
          std::vector<int32_t>,
          const nb::dict&,
          const std::string&>(),
      nb::keep_alive<1, 2>(),
      nb::keep_alive<1, 3>());
  bindings::register_steps(decoder);
  bindings::register_state(decoder);

  nb::class_<ScriptedModelDecoder> scripted(m, "ScriptedModelDecoder");
  scripted.def(
      nb::init<
          const model::Model&,
          state::ModelState&,
          std::vector<int32_t>,
          const nb::dict&,
          std::vector<int32_t>,
          std::vector<int32_t>>(),
      nb::keep_alive<1, 2>(),
      nb::keep_alive<1, 3>());
  bindings::register_steps(scripted);
  bindings::register_state(scripted);

  // Of the trunk's attention layers: keys, values, indexer keys, pooled keys.
  m.def("slab_addresses", [](const state::ModelState& s) {
    std::vector<uintptr_t> out;
    for (const auto& layer : s.trunk.layers) {
      if (const auto* cache = std::get_if<state::KvCache>(&layer.mixer)) {
        for (const auto& slab : cache->slabs()) {
          out.push_back(reinterpret_cast<uintptr_t>(slab.data<char>()));
        }
      }
    }
    return out;
  });
}
