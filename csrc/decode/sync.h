/** Waits for arrays. Every wait of this room goes through here, so that it is
 *  counted and a trace shows it. */
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <mlx/mlx.h>

#include "base/trace.h"

namespace qwenmtp::decode {

/** Waits of this thread so far: one thread owns a model's decoding. */
inline thread_local int64_t n_syncs = 0;

inline void sync(const std::vector<mlx::core::array>& arrays) {
  const bool there = std::ranges::all_of(arrays, [](const mlx::core::array& a) {
    return a.is_available();
  });
  if (there) {
    return;
  }
  const trace::Span span("sync");
  n_syncs++;
  mlx::core::eval(arrays);
}

} // namespace qwenmtp::decode
