/** The arithmetic of acceptance: functions of the target distribution p and the
 *  proposal q. Law: Leviathan et al. 2023, algorithm 1; rounding as MTPLX. */
#pragma once

#include "sampling/distribution.h"

namespace qwenmtp::sampling {

/** min(1, p(token) / q(token)); where q is zero, 1 if p is positive, else 0. */
double acceptance_probability(
    const Distribution& p,
    const Distribution& q,
    int32_t token);

/** (p - q)+ normalised; p itself where nothing positive is left. */
Distribution residual(const Distribution& p, const Distribution& q);

} // namespace qwenmtp::sampling
