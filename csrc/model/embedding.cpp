#include "model/embedding.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "ple/row_codec.h"

namespace qwenmtp::model {

namespace {

template <typename From, typename To>
void convert(const From* row, To* out, int n) {
  std::transform(row, row + n, out, [](From value) {
    return static_cast<To>(static_cast<float>(value));
  });
}

template <typename To>
void dense_row(const mx::array& table, int32_t id, To* out, int n) {
  const int64_t at = int64_t{id} * table.strides(0);
  if (table.dtype() == mx::bfloat16) {
    convert(table.data<mx::bfloat16_t>() + at, out, n);
  } else if (table.dtype() == mx::float16) {
    convert(table.data<mx::float16_t>() + at, out, n);
  } else {
    convert(table.data<float>() + at, out, n);
  }
}

} // namespace

Embedding::Embedding(Linear table, mx::Dtype dtype)
    : table_(std::move(table)), dtype_(dtype), hidden_(table_.matrix().in()) {
}

mx::array Embedding::operator()(std::span<const int32_t> ids, int copies)
    const {
  const int n = static_cast<int>(ids.size());
  const int vocab = table_.weight.shape(0);
  const size_t row_bytes = static_cast<size_t>(hidden_) * mx::size_of(dtype_);
  auto out = mx::array(
      mx::allocator::malloc(row_bytes * copies * n),
      {n, copies * hidden_},
      dtype_);
  auto* p_out = out.data<std::byte>();

  const bool wide = dtype_ == mx::float32;
  ple::RowFormat format{.dim = hidden_, .coding = ple::Coding::kAffine};
  std::array<const std::byte*, 3> planes{};
  std::vector<std::byte> record;
  if (table_.scales) {
    planes = {
        table_.weight.data<std::byte>(),
        table_.scales->data<std::byte>(),
        table_.biases->data<std::byte>()};
    format.bits = table_.quant.bits;
    format.group_size = table_.quant.group_size;
    format.scale_bytes = static_cast<int>(table_.scales->itemsize());
    record.resize(format.record_bytes());
  }
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      throw InvalidArgument(
          "[model.forward] token id " + std::to_string(id) +
          ", expected 0 .. " + std::to_string(vocab - 1));
    }
    if (table_.scales) {
      std::byte* p_record = record.data();
      for (int plane = 0; plane < 3; ++plane) {
        const size_t bytes = format.plane_bytes(plane);
        std::memcpy(p_record, planes[plane] + id * bytes, bytes);
        p_record += bytes;
      }
      ple::decode_row(
          format,
          record.data(),
          wide ? ple::RowType::kFloat32 : ple::RowType::kBfloat16,
          p_out);
    } else if (wide) {
      dense_row(table_.weight, id, reinterpret_cast<float*>(p_out), hidden_);
    } else {
      auto* p_row = reinterpret_cast<mx::bfloat16_t*>(p_out);
      dense_row(table_.weight, id, p_row, hidden_);
    }
    for (int copy = 1; copy < copies; ++copy) {
      std::memcpy(p_out + copy * row_bytes, p_out, row_bytes);
    }
    p_out += copies * row_bytes;
  }
  return out;
}

} // namespace qwenmtp::model
