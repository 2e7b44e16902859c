/** Hyper-connections: C residual streams read through a gated mean of their
 * norms. */
#pragma once

#include <optional>

#include "kernels/rows.h"

namespace qwenmtp::kernels {

struct HyperWeights {
  array norm;      // [C * H], effective weight
  Matrix low;      // [R + 8, C * H]: the gate's R rows, the inject's C, zeros
  Matrix up;       // [C * H, R]
  bool has_inject; // not in mixers
  int streams = 0; // C, at most 8
  float eps = 0;
};

struct HyperRead {
  array mix;                   // [n, H]
  std::optional<array> inject; // [n, C]
};

/** The read of x [n, C * H]. */
HyperRead hyper_read(
    const array& x,
    const HyperWeights& w,
    mlx::core::StreamOrDevice s = {});

/** x[s] + inject[s] * y for y [n, H], inject [n, C]. */
array hyper_write(
    const array& x,
    const array& y,
    const array& inject,
    mlx::core::StreamOrDevice s = {});

struct HyperWriteRead {
  array x; // [n, C * H]
  HyperRead read;
};

/** hyper_write and then hyper_read of its result, with the same bits, in one
 * node. */
HyperWriteRead hyper_write_read(
    const array& x,
    const array& y,
    const array& inject,
    const HyperWeights& w,
    mlx::core::StreamOrDevice s = {});

} // namespace qwenmtp::kernels
