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

sampling::RowView HostRows::operator[](int row) const {
  sync({rows_});
  if (!rows_.flags().row_contiguous) {
    rows_ = mx::contiguous(rows_);
    sync({rows_});
  }
  const auto* bytes = reinterpret_cast<const char*>(rows_.data<uint8_t>());
  return {
      bytes + static_cast<size_t>(row) * size() * rows_.itemsize(),
      row_dtype(rows_),
      size()};
}

const kernels::SampleOutput& HostRows::sampled(float scale, int m) const {
  if (!sampled_ || sampled_->scale != scale || sampled_->m != m) {
    sampled_ = Sampled{scale, m, kernels::sample(rows_, scale, m)};
  }
  return sampled_->of;
}

std::vector<mx::array> HostRows::wanted() const {
  if (!sampled_) {
    return {rows_};
  }
  const auto& s = sampled_->of;
  return {s.top, s.ids, s.ties, s.total};
}

sampling::Candidates HostRows::candidates(int row, float scale, int m) const {
  const auto& s = sampled(scale, m);
  sync(wanted());
  const auto count = static_cast<size_t>(m);
  const float* total = s.total.data<float>() + 2 * row;
  return {
      {s.ids.data<int32_t>() + row * count, count},
      {s.top.data<float>() + row * count, count},
      s.ties.data<int32_t>()[row],
      total[0],
      total[1],
      scale,
      size()};
}

mx::array HostRows::row(int i) const {
  return slice_rows(rows_, i, i + 1);
}

mx::array slice_rows(const mx::array& rows, int begin, int end) {
  return mx::slice(rows, {begin, 0}, {end, rows.shape(1)});
}

} // namespace qwenmtp::decode
