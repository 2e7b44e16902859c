#include "decode/rows.h"

#include "base/error.h"
#include "decode/sync.h"

namespace qwenmtp::decode {

namespace {

sampling::Dtype row_dtype(const mx::array& rows) {
  if (rows.dtype() == mx::float32) {
    return sampling::Dtype::float32;
  }
  if (rows.dtype() == mx::bfloat16) {
    return sampling::Dtype::bfloat16;
  }
  if (rows.dtype() == mx::float16) {
    return sampling::Dtype::float16;
  }
  throw InternalError(
      "[decode.rows] logits of another dtype, expected float32, bfloat16 or "
      "float16");
}

} // namespace

HostRows::HostRows(const mx::array& logits) : rows_(logits) {
  sync(rows_);
  if (!rows_.flags().row_contiguous) {
    rows_ = mx::contiguous(rows_);
    sync(rows_);
  }
}

sampling::RowView HostRows::operator[](int row) const {
  const auto size = rows_.shape(-1);
  const auto* bytes = reinterpret_cast<const char*>(rows_.data<uint8_t>());
  return {
      bytes + static_cast<size_t>(row) * size * rows_.itemsize(),
      row_dtype(rows_),
      size};
}

mx::array HostRows::row(int row) const {
  return mx::reshape(slice_rows(rows_, row, row + 1), {-1});
}

mx::array slice_rows(const mx::array& rows, int begin, int end) {
  return mx::slice(rows, {begin, 0}, {end, rows.shape(1)});
}

} // namespace qwenmtp::decode
