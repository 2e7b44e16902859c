#include "state/kv_cache.h"

#include <algorithm>

#include "base/error.h"

namespace qwenmtp::state {

namespace {

constexpr int kStep = 256; // rows; buffers grow by doubling from here
constexpr int kRecent = 8; // at least the rows that a round takes back

/** `a` with its axis `axis` extended to `rows` rows of zeros. */
mx::array grown(const mx::array& a, int axis, int rows) {
  auto shape = a.shape();
  shape[axis] = rows - shape[axis];
  return mx::concatenate({a, mx::zeros(shape, a.dtype())}, axis);
}

/** `a` with `rows` written along `axis` from index `at`. */
mx::array written(const mx::array& a, const mx::array& rows, int axis, int at) {
  auto start = mx::Shape(a.ndim(), 0);
  auto stop = a.shape();
  start[axis] = at;
  stop[axis] = at + rows.shape(axis);
  return mx::slice_update(a, rows, start, stop);
}

mx::array rows_of(const mx::array& a, int axis, int begin, int end) {
  auto start = mx::Shape(a.ndim(), 0);
  auto stop = a.shape();
  start[axis] = begin;
  stop[axis] = end;
  return mx::slice(a, start, stop);
}

} // namespace

KvCache::KvCache(const KvShape& shape, mx::Dtype dtype)
    : shape_(shape),
      keys_(mx::zeros({shape.n_kv_heads, 0, shape.head_dim}, dtype)),
      values_(keys_),
      raw_(mx::zeros({0, shape.index_dim}, dtype)),
      pooled_(raw_),
      recent_(raw_) {
}

KvCache::KvCache(
    const KvShape& shape,
    mx::array keys,
    mx::array values,
    mx::array raw,
    mx::array pooled,
    int len)
    : shape_(shape),
      len_(len),
      cap_(keys.shape(1)),
      keys_(std::move(keys)),
      values_(std::move(values)),
      raw_(std::move(raw)),
      pooled_(std::move(pooled)),
      recent_(mx::zeros({0, shape.index_dim}, raw_.dtype())),
      recent_begin_(len) {
}

void KvCache::reserve(int rows) {
  if (rows <= cap_) {
    return;
  }
  int cap = std::max(kStep, cap_);
  while (cap < rows) {
    cap *= 2;
  }
  keys_ = grown(keys_, 1, cap);
  values_ = grown(values_, 1, cap);
  raw_ = grown(raw_, 0, cap);
  pooled_ = grown(pooled_, 0, cap / shape_.ratio);
  cap_ = cap;
}

void KvCache::append(
    const mx::array& k,
    const mx::array& v,
    const mx::array& raw) {
  int n = raw.shape(0);
  reserve(len_ + n);
  keys_ = written(keys_, k, 1, len_);
  values_ = written(values_, v, 1, len_);
  raw_ = written(raw_, raw, 0, len_);
  len_ += n;
  recent_begin_ = std::max(0, len_ - kRecent) / shape_.ratio * shape_.ratio;
  recent_ = mx::contiguous(rows_of(raw_, 0, recent_begin_, len_));
}

void KvCache::set_pooled(int first, const mx::array& pooled) {
  pooled_ = written(pooled_, pooled, 0, first);
}

void KvCache::truncate(int len) {
  if (len < 0 || len > len_) {
    throw InternalError(
        "[state.truncate] " + std::to_string(len) + " rows of " +
        std::to_string(len_));
  }
  len_ = len;
}

mx::array KvCache::keys(int begin, int end) const {
  return rows_of(keys_, 1, begin, end);
}

mx::array KvCache::values(int begin, int end) const {
  return rows_of(values_, 1, begin, end);
}

mx::array KvCache::raw(int begin, int end) const {
  if (begin >= recent_begin_ && end <= recent_begin_ + recent_.shape(0)) {
    return rows_of(recent_, 0, begin - recent_begin_, end - recent_begin_);
  }
  return rows_of(raw_, 0, begin, end);
}

mx::array KvCache::pooled(int begin, int end) const {
  return rows_of(pooled_, 0, begin, end);
}

} // namespace qwenmtp::state
