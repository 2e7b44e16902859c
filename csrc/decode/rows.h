/** Rows of the network as the sampler reads them. Evaluates. */
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <mlx/mlx.h>

#include "kernels/sample.h"
#include "sampling/distribution.h"

namespace qwenmtp::decode {

namespace mx = mlx::core;

/** Logits [n, V] as the host sees them; keeps the array alive. A read waits for
 *  what it needs, unless a sync() of wanted() has. */
class HostRows {
 public:
  explicit HostRows(const mx::array& logits) : rows_(logits) {
  }

  /** V */
  int size() const {
    return rows_.shape(-1);
  }

  /** The whole row. */
  sampling::RowView operator[](int row) const;

  /** What the device says of all rows, lazily: their m largest values. */
  const kernels::SampleOutput& sampled(float scale, int m) const;

  /** The same of one row, waited for. */
  sampling::Candidates candidates(int row, float scale, int m) const;

  /** What the host has to wait for: candidates, if they were asked for, else
   *  the rows. */
  std::vector<mx::array> wanted() const;

  /** [1, V], lazily. */
  mx::array row(int i) const;

 private:
  struct Sampled {
    float scale;
    int m;
    kernels::SampleOutput of;
  };

  mutable mx::array rows_;
  mutable std::optional<Sampled> sampled_;
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
  std::shared_ptr<const HostRows> rows;
  std::optional<mx::array> hidden; // [n, W]; none after plain autoregression
  int row = 0;

  /** [1, V] */
  mx::array logits_row() const {
    return rows->row(row);
  }
  /** [1, W] */
  mx::array hidden_row() const {
    return slice_rows(*hidden, row, row + 1);
  }
};

} // namespace qwenmtp::decode
