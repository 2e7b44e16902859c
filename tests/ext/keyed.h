/** The retired keyed sampler: one mx.random key per token, categorical on the
 *  filtered row, all lazy. The same law as the classic sampler and another
 *  stream, so it exists for tests alone: no wheel carries this extension and no
 *  request reaches it. */
#pragma once

#include <cstdint>
#include <utility>

#include <mlx/mlx.h>

#include "sampling/row.h"

namespace qwenmtp::testing {

class KeyedSampler {
 public:
  /** seed: the request's; its low 31 bits start the chain of keys. Needs a
   *  temperature above 0 and a top_k of at least 1. */
  KeyedSampler(uint64_t seed, const sampling::Params& params);

  /** Lazy token of one row [V] under the next key of the chain; -1 for a row
   *  with NaN or an infinite maximum. */
  mlx::core::array operator()(const mlx::core::array& row);

  /** The same, waited for. */
  int32_t token(const mlx::core::array& row) {
    return (*this)(row).item<int32_t>();
  }

  /** The key of the last token. */
  std::pair<uint32_t, uint32_t> last_key() const;

 private:
  sampling::Params params_;
  mlx::core::array chain_;
  mlx::core::array last_;
};

} // namespace qwenmtp::testing
