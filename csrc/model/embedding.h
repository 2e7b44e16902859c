/** The token embedding. */
#pragma once

#include <cstdint>
#include <span>

#include "model/weights.h"

namespace qwenmtp::model {

class Embedding {
 public:
  /** table [V, H]; values come in `dtype`, float32 or bfloat16. */
  Embedding(Linear table, mx::Dtype dtype);

  /** [n, copies * H]: row ids[i], `copies` times side by side. Throws
   *  InvalidArgument for an id that is not one. */
  mx::array operator()(std::span<const int32_t> ids, int copies = 1) const;

  /** [n, H] of ids [n] int32 that a device will choose. */
  mx::array operator()(const mx::array& ids) const;

 private:
  Linear table_;
  mx::Dtype dtype_;
};

} // namespace qwenmtp::model
