/** The primitive definitions of model.md section 4 and 5 on MLX's graph, at
 *  the reference's rounding points: what they return is in x's dtype. */
#pragma once

#include <mlx/mlx.h>

#include "model/config.h"

namespace qwenmtp::model {

namespace mx = mlx::core;

/** cos and sin of position * inv_freq, float32 [n, rotary_dim / 2]. */
struct RopeTable {
  mx::array cos;
  mx::array sin;
};

/** Table for n positions first, first + step, ... */
RopeTable rope_table(const Rope& rope, int first, int n, int step = 1);

} // namespace qwenmtp::model
