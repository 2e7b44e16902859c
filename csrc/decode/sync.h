/** Waits for arrays. Every wait of this room goes through here, so that a
 *  trace shows it. */
#pragma once

#include <utility>

#include <mlx/mlx.h>

#include "base/trace.h"

namespace qwenmtp::decode {

template <typename... Arrays>
void sync(Arrays&&... arrays) {
  const trace::Span span("sync");
  mlx::core::eval(std::forward<Arrays>(arrays)...);
}

} // namespace qwenmtp::decode
