/** Rows of the token table, by ids that need not be known yet. */
#pragma once

#include "kernels/rows.h"

namespace qwenmtp::kernels {

/** [n, copies * in] in `dtype`, float32 or bfloat16: row ids[i] of table
 *  [V, in], `copies` times side by side; codes give mx.dequantize's bits. ids
 *  [n] int32 are below V: nobody looks. Below 0, as a draw from a row of NaN
 *  is, they read row 0. */
array embed(
    const array& ids,
    const Matrix& table,
    int copies,
    mlx::core::Dtype dtype,
    mlx::core::StreamOrDevice s = {});

} // namespace qwenmtp::kernels
