/** Root-mean-square norm with weight. MLX's op and product are two launches on a
 *  GPU and eight nodes on the CPU; this is one. */
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
