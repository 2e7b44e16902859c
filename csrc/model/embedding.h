/** The token embedding, read on the host: the ids are known before the graph
 *  is, and a row is a few kilobytes. */
#pragma once

#include <cstdint>
#include <span>

#include "model/weights.h"

namespace qwenmtp::model {

class Embedding {
 public:
  /** table [V, H]; values come in `dtype`, float32 or bfloat16. */
  Embedding(Linear table, mx::Dtype dtype);

  /** [n, copies * H]: row ids[i], `copies` times side by side. Codes decode as
   *  PLE rows do (ple/row_codec.h). Throws InvalidArgument for an id that is
   *  not one. */
  mx::array operator()(std::span<const int32_t> ids, int copies = 1) const;

 private:
  Linear table_;
  mx::Dtype dtype_;
  int hidden_;
};

} // namespace qwenmtp::model
