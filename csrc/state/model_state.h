/** All that a turn leaves: trunk layers, MTP history, ids, and the rows of the
 *  last token. The invariants that make it usable, and its comparison. */
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "state/trunk_state.h"

namespace qwenmtp::state {

/** What no cut can bring back: the recurrent parts after `len` tokens. */
struct Boundary {
  struct Layer {
    std::optional<GdnState> gdn;
    std::optional<PleState> ple;
  };
  int len = 0;
  std::vector<Layer> layers;       // as the trunk's
  std::optional<mx::array> hidden; // [C * H], where a history follows
};

struct ModelState {
  TrunkState trunk;
  std::optional<MtpState> mtp;      // absent for plain autoregression
  std::vector<int32_t> ids;         // every token that the trunk holds
  std::optional<mx::array> logits;  // [V], the row after the last token
  std::optional<mx::array> hidden;  // [C * H], absent where no draft follows
  std::vector<Boundary> boundaries; // where rewind() can go, ascending

  int len() const {
    return trunk.len;
  }
};

/** Throws InternalError naming the broken rule (sessions.md 1.2): one length
 *  in all parts, base + history = len - 1, n-gram ids = the last ids. */
void check_invariants(const ModelState& state);

/** The recurrent parts of now, and its hidden row where there is a history. An
 *  open window belongs to them. */
Boundary boundary_of(const ModelState& state);

/** Back to fewer tokens: attention and history are cut, recurrent parts and
 *  hidden row are the boundary's; logits are gone, and so are later boundaries
 *  and an open window. */
void rewind(ModelState& state, const Boundary& to);

/** Bytes of all buffers, boundaries and spare rows included. */
size_t held_bytes(const ModelState& state);

struct NamedTensor {
  std::string name; // "trunk.0.gdn_conv", "mtp.keys", "final.logits"
  mx::array value;  // logical rows only
};

/** Every tensor in the order of a checkpoint: layers with recurrent state,
 *  attention layers, MTP history, logits, hidden. */
std::vector<NamedTensor> tensors(const ModelState& state);

/** What differs first, as "name[index]: value, other value"; nothing when all
 *  bits are equal. Evaluates both states. */
std::optional<std::string> first_difference(
    const ModelState& a,
    const ModelState& b);

} // namespace qwenmtp::state
