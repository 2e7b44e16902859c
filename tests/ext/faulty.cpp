/** A real model with one thing wrong, for tests that must notice it. */
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

  decode::Rows draft(const mx::array& hidden, int32_t token, int depth)
      override {
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
}
