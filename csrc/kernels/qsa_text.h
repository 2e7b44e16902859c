/** The launches of metal/qsa.metal behind qsa_prepare and qsa_attend, whose
 * checks are done. */
#pragma once

#include "kernels/qsa.h"

namespace qwenmtp::kernels {

/** `asks`: the rows have queries. */
QsaPrepared qsa_text_prepare(
    const QsaRows& rows,
    const array& raw_tail,
    const QsaRope& at,
    const QsaRope& blocks,
    const QsaWeights& w,
    bool asks,
    mlx::core::StreamOrDevice s);

QsaOutput qsa_text_attend(
    const QsaQueries& rows,
    const QsaWeights& w,
    mlx::core::StreamOrDevice s);

} // namespace qwenmtp::kernels
