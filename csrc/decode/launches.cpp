#include "decode/launches.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <mlx/primitives.h>

#include "base/error.h"
#include "decode/model_network.h"
#include "decode/mtp.h"
#include "decode/walk.h"
#include "kernels/kernel.h"

namespace qwenmtp::decode {

namespace {

/** Views of which MLX makes a copy where values do not lie in order
 *  (mlx/backend/gpu/copy.cpp, reshape_gpu). */
const std::set<std::string> kReshapes = {"Flatten", "Reshape", "Unflatten"};

/** Operators of one launch, whatever the shapes. */
const std::set<std::string> kSingle = {"Add", "Multiply"};

/** Whether the values of a whole array lie one after the other. */
bool in_order(const mx::array& a) {
  if (!a.has_primitive() || a.size() <= 1) {
    return true;
  }
  const std::string name = a.primitive().name();
  if (!is_view(name) || kReshapes.contains(name)) {
    return true;
  }
  const mx::array& from = a.inputs()[0];
  if (!in_order(from) || name == "Transpose") {
    return false;
  }
  if (name != "Slice" && name != "Split") {
    return a.size() == from.size();
  }
  bool several = false; // entries of the axes before
  bool gaps = false;
  for (int axis = 0; axis < static_cast<int>(a.ndim()); ++axis) {
    gaps = gaps || (several && a.shape(axis) != from.shape(axis));
    several = several || a.shape(axis) > 1;
  }
  return !gaps;
}

/** Of MLX's Metal back end for one node; read in the source of 0.32.2, the
 *  newest that could be had. */
int64_t launches_of(const mx::array& node) {
  const std::string name = node.primitive().name();
  const auto& in = node.inputs();
  const int64_t copies = std::ranges::count_if(in, [](const mx::array& a) {
    return !in_order(a);
  });
  if (kernels::is_planned(node)) { // its inputs are made row-contiguous
    return 1 + copies;
  }
  if (name == "Contiguous") { // of a slab's rows: freed of their large buffer
    return in[0].has_primitive() &&
                   in[0].primitive().name() == std::string("Slice")
               ? 1
               : copies;
  }
  if (kReshapes.contains(name)) {
    return copies;
  }
  if (is_view(name)) {
    return 0;
  }
  if (name == "Concatenate") { // metal/slicing.cpp: one copy a part
    return std::ranges::count_if(in, [](const mx::array& a) {
      return a.size() > 0;
    });
  }
  if (name == "SliceUpdate") { // a cache's slab is donated: rows are copied in
    return in[1].size() > 0 ? 1 : 0;
  }
  if (kSingle.contains(name)) {
    return 1;
  }
  throw InternalError("[decode.launches] no rule for " + name);
}

/** Reads .6/.95/20 as on an accelerator; a greedy one has fewer launches. */
const RowReader& reader() {
  static const RowReader kReader({.6, .95, 20}, true);
  return kReader;
}

class Steps {
 public:
  Steps(const model::Model& model, int n_tokens)
      : state_(initial_state(model, true)), network_(model, state_) {
    const std::vector<int32_t> ids(n_tokens);
    const Rows rows = network_.forward(ids, LogitRows::last, false);
    hidden_ = slice_rows(rows.hidden, n_tokens - 1, n_tokens);
    network_.append_history(
        slice_rows(rows.hidden, 0, n_tokens - 1),
        std::span(ids).first(n_tokens - 1));
    walk_(held({*rows.logits, rows.hidden}), [](const mx::array&) {});
  }

  Launches ar() {
    const Rows rows = network_.forward(std::vector{0}, LogitRows::last, false);
    return since_last(reader().ask(*rows.logits)->wanted());
  }

  Launches drafts(int n) {
    return since_last(chain(n).wanted);
  }

  Launches verify(int n_rows) {
    const Rows rows =
        network_.forward(std::vector<int32_t>(n_rows), LogitRows::all, true);
    return since_last(reader().ask(*rows.logits)->wanted());
  }

  /** The loop's steps, with `accepted` of the drafts kept. */
  Launches round(int depth, int accepted) {
    const int mark = network_.history_len();
    std::vector<mx::array> outputs = chain(depth).wanted;
    const Rows rows =
        network_.forward(std::vector<int32_t>(depth + 1), LogitRows::all, true);
    const auto read = reader().ask(*rows.logits)->wanted();
    outputs.insert(outputs.end(), read.begin(), read.end());
    network_.commit(1 + accepted);
    network_.truncate_history(mark + 1);
    if (accepted > 0) {
      network_.append_history(
          slice_rows(rows.hidden, 0, accepted),
          std::vector<int32_t>(accepted));
    }
    return since_last(std::move(outputs));
  }

 private:
  DraftChain chain(int n) {
    const std::vector<double> uniforms(n, .5);
    return {network_, reader(), *hidden_, 0, 0, uniforms};
  }

  /** `outputs` and all that the state holds now; kept, so that no later node
   *  gets the address of one that was visited. */
  const std::vector<mx::array>& held(std::vector<mx::array> outputs) {
    const auto leaves = network_.leaves();
    outputs.insert(outputs.end(), leaves.begin(), leaves.end());
    return held_.emplace_back(std::move(outputs));
  }

  /** Of the nodes that lead to these and did not lead to earlier ones. */
  Launches since_last(std::vector<mx::array> outputs) {
    Launches found;
    walk_(held(std::move(outputs)), [&](const mx::array& a) {
      if (const int64_t n = launches_of(a); n > 0) {
        found[a.primitive().name()] += n;
      }
    });
    return found;
  }

  state::ModelState state_;
  ModelNetwork network_;
  Walk walk_;
  std::optional<mx::array> hidden_; // [1, W]
  std::vector<std::vector<mx::array>> held_;
};

int64_t total(const Launches& launches) {
  return std::accumulate(
      launches.begin(),
      launches.end(),
      int64_t{0},
      [](int64_t sum, const auto& entry) { return sum + entry.second; });
}

} // namespace

std::map<std::string, Launches> launches(const model::Model& model, int depth) {
  const kernels::Planning planning;
  std::map<std::string, Launches> most;
  const auto keep = [&](const char* step, Launches found) {
    if (total(found) > total(most[step])) {
      most[step] = std::move(found);
    }
  };
  const int ratio = model.config().index_ratio;
  for (int n_tokens = ratio; n_tokens < 2 * ratio; ++n_tokens) {
    const auto behind = [&] { return Steps(model, n_tokens); };
    keep("ar", behind().ar());
    // One more, of a token that the device chose.
    Launches draft = behind().drafts(2);
    for (const auto& [node, n] : behind().drafts(1)) {
      draft[node] -= n;
    }
    keep("draft", draft);
    keep("verify", behind().verify(depth + 1));
    for (int accepted = 0; accepted <= depth; ++accepted) {
      keep("round", behind().round(depth, accepted));
    }
  }
  return most;
}

} // namespace qwenmtp::decode
