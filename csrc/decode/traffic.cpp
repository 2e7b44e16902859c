#include "decode/traffic.h"

#include <set>

#include <mlx/primitives.h>

#include "base/error.h"
#include "decode/model_network.h"
#include "decode/sync.h"
#include "decode/walk.h"

namespace qwenmtp::decode {

namespace {

/** Bytes that depend on ids which the node computes. */
struct Taken {
  std::string name;
  mx::array ids; // below 0: none
  int64_t bytes_per_id;
};

class Bytes {
 public:
  /** ratio: tokens a pooled key; n_tokens: held after the forward. */
  Bytes(int ratio, int n_tokens) : ratio_(ratio), blocks_(n_tokens / ratio) {
  }

  void count(const std::vector<mx::array>& roots) {
    walk_(roots, [this](const mx::array& a) { count(a); });
  }

  /** After the graph was evaluated. */
  std::map<std::string, NodeTraffic> finish() {
    for (const Taken& t : taken_) {
      const auto* ids = t.ids.data<int32_t>();
      std::set<int32_t> distinct(ids, ids + t.ids.size());
      distinct.erase(distinct.begin(), distinct.lower_bound(0));
      totals_[t.name].bytes +=
          static_cast<int64_t>(distinct.size()) * t.bytes_per_id;
    }
    return totals_;
  }

 private:
  void count(const mx::array& a) {
    const std::string name = a.primitive().name();
    if (is_view(name)) {
      return;
    }
    NodeTraffic& total = totals_[name];
    total.nodes++;
    const auto& in = a.inputs();
    const auto out = a.outputs();
    int64_t gathered = 0;
    for (size_t i = 0; i < in.size(); i++) {
      if (name == "embed" && i > 0) {
        gathered += static_cast<int64_t>(in[i].nbytes()) / in[i].shape(0);
      } else if (name == "moe" && in[i].ndim() == 3) { // of all experts
        gathered += static_cast<int64_t>(in[i].nbytes()) / in[i].shape(0);
      } else if (name == "qsa_attend" && (i == 3 || i == 4)) { // keys, values
        gathered +=
            static_cast<int64_t>(in[i].nbytes()) / in[i].shape(1) * ratio_;
      } else if (name == "qsa_attend" && i == 5) { // pooled keys, with spare
        total.bytes +=
            static_cast<int64_t>(in[i].nbytes()) / in[i].shape(0) * blocks_;
      } else if (name == "SliceUpdate" && i == 0) {
        // Rows written: the update's own size.
      } else {
        total.bytes += static_cast<int64_t>(in[i].nbytes());
      }
    }
    if (gathered > 0) {
      taken_.push_back({name, name == "embed" ? in[0] : out[1], gathered});
    }
    for (const mx::array& o : out) {
      total.bytes += static_cast<int64_t>(
          name == "SliceUpdate" ? in[1].nbytes() : o.nbytes());
    }
  }

  int ratio_;
  int blocks_;
  Walk walk_;
  std::map<std::string, NodeTraffic> totals_;
  std::vector<Taken> taken_;
};

} // namespace

std::map<std::string, NodeTraffic> traffic(
    const model::Model& model,
    const state::ModelState& state,
    std::span<const int32_t> ids,
    bool draft) {
  state::ModelState copy = state;
  ModelNetwork network(model, copy);
  Bytes bytes(
      model.config().index_ratio,
      copy.len() + static_cast<int>(ids.size()));
  std::vector<mx::array> outputs;
  if (draft) {
    if (!copy.hidden) {
      throw InvalidArgument(
          "[decode.traffic] a draft behind a state without hidden row");
    }
    const Rows rows =
        network.draft(mx::reshape(*copy.hidden, {1, -1}), ids[0], 1);
    outputs = {*rows.logits, rows.hidden};
  } else {
    const bool window = ids.size() > 1;
    const Rows rows =
        network.forward(ids, window ? LogitRows::all : LogitRows::last, window);
    outputs = network.leaves();
    outputs.push_back(*rows.logits);
  }
  bytes.count(outputs);
  sync(outputs);
  return bytes.finish();
}

} // namespace qwenmtp::decode
