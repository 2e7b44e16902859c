/** Root-mean-square norm with weight. On a GPU it is MLX's op; on the CPU MLX
 *  spells it out in seven nodes, so that a body of our own is one. */
#pragma once

#include "kernels/kernel.h"

namespace qwenmtp::kernels {

/** x [n, W] / sqrt(mean(x^2) + eps), rounded, times weight [W], rounded. */
array rms_norm(
    const array& x,
    const array& weight,
    float eps,
    mlx::core::StreamOrDevice s = {});

} // namespace qwenmtp::kernels
