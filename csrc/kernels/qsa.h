/** Qwen sparse attention between its projections. */
#pragma once

#include <optional>

#include "kernels/kernel.h"

namespace qwenmtp::kernels {

struct QsaWeights {
  array q_norm;       // [D]
  array k_norm;       // [D]
  array index_q_norm; // [Di]
  array index_k_norm; // [Di]
  int heads = 0;
  int kv_heads = 0;
  int index_heads = 0;
  int ratio = 0;         // tokens of a block
  int budget_blocks = 0; // blocks that a row may see besides its incomplete one
  float eps = 0;
};

/** Rows of the projections. */
struct QsaRows {
  array proj;  // [n, (2 Hkv + 2 Hq) D]: keys, values, then a head's query and
               // its gate; or only keys and values
  array index; // [n, (Hi + 1) * Di]: query heads, then the key
};

/** cos and sin of rotary angles, float32 [rows, rotary_dim / 2]. */
struct QsaRope {
  array cos;
  array sin;
};

struct QsaPrepared {
  array k;      // [Hkv, n, D], normalised and rotated
  array v;      // [Hkv, n, D]
  array raw;    // [n, Di], index keys as projected
  array pooled; // [blocks, Di]: keys of the blocks that these rows complete
  std::optional<array> q;       // [n, Hq * D], normalised and rotated
  std::optional<array> index_q; // [n, Hi * Di], normalised and rotated
};

/** What the caches and the scores take. `at` holds the angles of the rows,
 * `blocks` those of the first tokens of the blocks that become complete;
 * raw_tail [t, Di] the raw keys of the incomplete block before row 0, 0 <= t <
 * ratio. Rows without queries only enter the caches. */
QsaPrepared qsa_prepare(
    const QsaRows& rows,
    const array& raw_tail,
    const QsaRope& at,
    const QsaRope& blocks,
    const QsaWeights& w,
    mlx::core::StreamOrDevice s = {});

/** Rows at positions first .. first + n - 1 and the caches that hold them. */
struct QsaQueries {
  array q;       // [n, Hq * D], of qsa_prepare
  array proj;    // as QsaRows: the gates
  array index_q; // [n, Hi * Di], of qsa_prepare
  array keys;    // [Hkv, >= first + n, D]
  array values;  // like keys
  array pooled;  // [>= (first + n) / ratio, Di]
  int first = 0;
};

struct QsaOutput {
  array y;      // [n, Hq * D], gated
  array blocks; // [n, budget_blocks] int32: blocks seen, ascending, -1 behind
                // the last
};

/** Attention of the rows. Row p sees the budget_blocks best of its (p + 1) /
 * ratio complete blocks, by float32 score less 1e-12 a block, the larger id
 * among equals, and its incomplete block. Caches may be longer; nothing behind
 * row p is read for it. */
QsaOutput qsa_attend(
    const QsaQueries& rows,
    const QsaWeights& w,
    mlx::core::StreamOrDevice s = {});

} // namespace qwenmtp::kernels
