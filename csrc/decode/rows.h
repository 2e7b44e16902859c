/** Rows of the network as the sampler reads them. Evaluates. */
#pragma once

#include <optional>

#include <mlx/mlx.h>

#include "sampling/row.h"

namespace qwenmtp::decode {

namespace mx = mlx::core;

/** Evaluated logits [n, V] on the host; keeps the array alive. */
class HostRows {
 public:
  explicit HostRows(const mx::array& logits);

  /** On the host. */
  sampling::RowView operator[](int row) const;
  /** [V], where it is. */
  mx::array row(int row) const;

 private:
  mx::array rows_;
};

/** The rows of a prefix's last token, as far as they are known. */
struct LastRows {
  std::optional<mx::array> logits; // [1, V]
  std::optional<mx::array> hidden; // [1, W]
};

/** Rows begin .. end - 1 of [n, W]. */
mx::array slice_rows(const mx::array& rows, int begin, int end);

/** Logits row and hidden of the last token that the trunk holds: row `row` of
 *  a forward's outputs. */
struct Tip {
  mx::array logits;                // [n, V]
  std::optional<mx::array> hidden; // [n, W]; none after plain autoregression
  int row = 0;

  /** [1, V] */
  mx::array logits_row() const {
    return slice_rows(logits, row, row + 1);
  }
  /** [1, W] */
  mx::array hidden_row() const {
    return slice_rows(*hidden, row, row + 1);
  }
};

} // namespace qwenmtp::decode
