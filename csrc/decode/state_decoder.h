/** One request on one ModelState: the decoder, and the commit of what it left
 *  into the state. */
#pragma once

#include "decode/decoder.h"
#include "state/model_state.h"

namespace qwenmtp::decode {

class StateDecoder {
 public:
  /** network works on state. prompt: every id of the context; the state holds a
   *  prefix of it and must outlive the decoder. Throws InvalidArgument. */
  StateDecoder(
      std::unique_ptr<Network> network,
      state::ModelState& state,
      std::vector<int32_t> prompt,
      Options options);

  Decoder& decoder() {
    return decoder_;
  }

  /** Commits the state after decoder().done(), or puts it back to before the
   *  request; returns why, or an empty string. Throws Cancelled, and
   *  InternalError for a state that breaks its invariants. */
  std::string finish();

 private:
  state::ModelState& state_;
  std::unique_ptr<Network> network_;
  bool drops_history_; // the history of a cycle ends with it
  Decoder decoder_;
};

} // namespace qwenmtp::decode
