/** Mixture of experts with a shared expert. */
#pragma once

#include "kernels/rows.h"

namespace qwenmtp::kernels {

struct MoeWeights {
  Matrix router;        // [E, H]
  Matrix gate;          // [E, I, H]
  Matrix up;            // [E, I, H]
  Matrix down;          // [E, H, I]
  Matrix shared_gate;   // [Is, H]
  Matrix shared_up;     // [Is, H]
  Matrix shared_down;   // [H, Is]
  Matrix shared_weight; // [1, H]
  int top_k = 0;
};

struct MoeOutput {
  array y;       // [n, H]
  array ids;     // [n, K] int32, by (probability, id) ascending: the order of
                 // summation
  array weights; // [n, K]
};

/** Router, the experts it picks, the shared expert and their sum, for u [n, H].
 */
MoeOutput moe(
    const array& u,
    const MoeWeights& w,
    mlx::core::StreamOrDevice s = {});

} // namespace qwenmtp::kernels
