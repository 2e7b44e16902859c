/** Plain autoregression: one token, one forward. */
#pragma once

#include "decode/turn.h"

namespace qwenmtp::decode {

class ArLoop {
 public:
  explicit ArLoop(Turn& turn) : turn_(turn) {
  }

  /** The forward of the last token, and the next one. */
  void advance();

  bool done() const {
    return done_;
  }

 private:
  void forward_last();

  Turn& turn_;
  bool done_ = false;
};

} // namespace qwenmtp::decode
