/** What the network remembers of a token sequence: one entry a layer, and the
 *  window of the last forward until it is committed. Copies share arrays and
 *  cost nothing; arrays are never written in place once shared. */
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include <mlx/mlx.h>

#include "state/kv_cache.h"

namespace qwenmtp::state {

/** Gated DeltaNet: convolution tail and delta-rule state after some tokens.
 *  Where rows wait, the state is that after the first `keep` of them; the next
 *  forward applies them. A state that is saved has none. */
struct GdnState {
  mx::array conv;  // [kernel - 1, channels], pre-convolution, oldest row first
  mx::array delta; // [Hv, Dv, Dk] float32
  std::vector<mx::array> waiting = {}; // what the kernel keeps of its last rows
  int keep = 0;
};

/** N-gram embedding: convolution tail and the ids that the next token hashes
 *  with. */
struct PleState {
  mx::array conv; // [(kernel - 1) * ngram_size, C * H], normalised rows
  std::vector<int64_t> ids; // [ngram_size - 1], oldest first, eos padded
};

/** What a commit of a window's first rows needs: the states before its parts,
 *  whose rows wait. */
using GdnWindow = std::vector<GdnState>;

struct PleWindow {
  PleState before;
  mx::array normed;         // [n, C * H], rows of the convolution
  std::vector<int64_t> ids; // [n]
};

struct LayerState {
  std::variant<GdnState, KvCache> mixer;
  std::optional<PleState> ple;
  std::optional<GdnWindow> gdn_window;
  std::optional<PleWindow> ple_window;
};

struct TrunkState {
  std::vector<LayerState> layers;
  int len = 0;    // tokens forwarded and committed
  int window = 0; // rows of the last forward that are not committed yet
};

/** The MTP head's own attention cache: row j holds (hidden j, token j + 1). */
struct MtpState {
  KvCache cache;
  int base = 0; // tokens before row 0; above 0 where the history was cut

  int len() const {
    return cache.len();
  }
};

/** Every array of a state, for evaluation. */
std::vector<mx::array> arrays(const TrunkState& state);
std::vector<mx::array> arrays(const MtpState& state);

} // namespace qwenmtp::state
