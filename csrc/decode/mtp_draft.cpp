/** The drafts of a round. */
#include "decode/mtp.h"
#include "decode/sync.h"

namespace qwenmtp::decode {

using sampling::Distribution;

DraftChain::DraftChain(
    Network& network,
    const RowReader& reader,
    const mx::array& hidden,
    int32_t token,
    int first,
    std::span<const double> uniforms) {
  DraftToken next = token;
  const mx::array* from = &hidden;
  for (size_t i = 0; i < uniforms.size(); i++) {
    const int depth = first + static_cast<int>(i) + 1;
    const Rows out = network.draft(*from, next, depth);
    auto rows = reader.ask(*out.logits);
    for (const mx::array& a : rows->wanted()) {
      wanted.push_back(a);
    }
    auto pick = i + 1 < uniforms.size() ? reader.pick(*rows, uniforms[i])
                                        : std::nullopt;
    steps.push_back({std::move(rows), out.hidden, pick});
    if (!pick) {
      return;
    }
    wanted.push_back(*pick);
    next = *pick;
    from = &steps.back().hidden;
  }
}

/** Depth 1 sees the trunk's hidden, deeper steps the head's own. Where the
 *  device can choose, it goes on with its own picks; the host chooses again
 *  from what it reads, and begins a new chain behind a pick that it does not
 *  share. The first history row is final, the others are speculative. */
void MtpLoop::propose(Window& window, int depth) {
  Turn& t = turn_;
  const Stopwatch watch(t.statistics.seconds.draft);
  const bool greedy = t.draft.params().greedy();
  const std::vector<double> uniforms =
      greedy ? std::vector<double>(depth) : t.draws.uniforms(depth);
  int32_t token = primary_;
  mx::array hidden = t.tip->hidden_row();
  t.network.expect({&token, 1});
  if (depth == 0 && committed_history()) {
    hold_history(hidden, token);
  } else {
    flush_history();
    history_mark_ = t.network.history_len();
  }
  for (int d = 0; d < depth;) {
    t.poll();
    const DraftChain chain(
        t.network,
        t.draft,
        hidden,
        token,
        d,
        std::span(uniforms).subspan(d));
    sync(chain.wanted);
    for (const DraftChain::Step& step : chain.steps) {
      if (greedy) {
        token = t.draft.argmax(*step.rows, 0);
        window.proposals.push_back(Distribution::point(token));
      } else {
        window.proposals.push_back(t.draft.distribution(*step.rows, 0));
        token = drawn(window.proposals.back(), uniforms[d]);
      }
      window.drafts.push_back(token);
      hidden = step.hidden;
      t.statistics.drafted_tokens++;
      t.statistics.drafted_by_depth[d]++;
      d++;
      if (step.pick && step.pick->data<int32_t>()[0] != token) {
        t.network.truncate_history(history_mark_ + d);
        break;
      }
    }
    t.network.expect(window_ids(primary_, window.drafts));
  }
}

} // namespace qwenmtp::decode
