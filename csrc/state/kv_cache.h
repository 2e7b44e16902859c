/** Keys, values and indexer keys of one sparse-attention layer: append and
 *  truncate. Rows lie at their absolute position; rows past `len` are stale
 *  and are overwritten before they can be read. No attention happens here. */
#pragma once

#include <mlx/mlx.h>

namespace qwenmtp::state {

namespace mx = mlx::core;

/** Widths of one attention layer's rows. */
struct KvShape {
  int n_kv_heads = 0; // Hkv
  int head_dim = 0;   // D
  int index_dim = 0;  // Di
  int ratio = 0;      // c, rows a pooled block
};

class KvCache {
 public:
  KvCache(const KvShape& shape, mx::Dtype dtype);
  /** Over slabs whose first len rows are valid: keys, values [Hkv, cap, D], raw
   *  [cap, Di], pooled [cap / c, Di]. */
  KvCache(
      const KvShape& shape,
      mx::array keys,
      mx::array values,
      mx::array raw,
      mx::array pooled,
      int len);

  const KvShape& shape() const {
    return shape_;
  }
  /** Rows held. */
  int len() const {
    return len_;
  }
  /** Complete blocks among them; each has a pooled key. */
  int n_blocks() const {
    return len_ / shape_.ratio;
  }

  /** Writes n rows after the last one: k, v [Hkv, n, D], raw [n, Di]. The
   *  pooled keys of blocks that became complete must follow at once. */
  void append(const mx::array& k, const mx::array& v, const mx::array& raw);
  /** Pooled keys of blocks first .. first + m - 1, [m, Di]. */
  void set_pooled(int first, const mx::array& pooled);
  /** Forgets all rows from `len` on. */
  void truncate(int len);
  /** Room for `rows` rows in all, so that later appends move nothing. */
  void reserve(int rows);

  /** Rows begin .. end - 1: [Hkv, end - begin, D]. */
  mx::array keys(int begin, int end) const;
  mx::array values(int begin, int end) const;
  /** Un-normalised, un-rotated indexer keys, [end - begin, Di]. The last ones
   *  share no buffer with the slab: MLX would copy all of a slab that it writes
   *  while some of its rows are still read. */
  mx::array raw(int begin, int end) const;
  /** Normalised, rotated block keys, [end - begin, Di]. */
  mx::array pooled(int begin, int end) const;

  /** The same rows with the stale ones behind them, [Hkv, cap, D] and
   *  [cap / c, Di]. */
  const mx::array& key_rows() const {
    return keys_;
  }
  const mx::array& value_rows() const {
    return values_;
  }
  const mx::array& pooled_rows() const {
    return pooled_;
  }

  /** The slabs of keys, values, raw and pooled keys. */
  std::vector<mx::array> slabs() const {
    return {keys_, values_, raw_, pooled_};
  }
  /** The arrays behind the rows, for evaluation and byte counts. */
  std::vector<mx::array> buffers() const {
    return {keys_, values_, raw_, pooled_, recent_};
  }

 private:
  KvShape shape_;
  int len_ = 0;
  int cap_ = 0;
  mx::array keys_;   // [Hkv, cap, D]
  mx::array values_; // [Hkv, cap, D]
  mx::array raw_;    // [cap, Di]
  mx::array pooled_; // [cap / c, Di]
  mx::array recent_; // raw rows recent_begin_ .. once more
  int recent_begin_ = 0;
};

} // namespace qwenmtp::state
