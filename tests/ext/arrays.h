/** numpy <-> MLX for tests of single rooms. bfloat16 travels as its uint16
 * bits, the only use of uint16 here. */
#pragma once

#include <cstring>
#include <vector>

#include <mlx/mlx.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace qwenmtp::testing {

using NumPy = nanobind::
    ndarray<nanobind::numpy, nanobind::c_contig, nanobind::device::cpu>;

inline mlx::core::Dtype dtype_of(const NumPy& a) {
  namespace nb = nanobind;
  namespace mx = mlx::core;
  auto d = a.dtype();
  if (d == nb::dtype<float>()) {
    return mx::float32;
  }
  if (d == nb::dtype<uint16_t>()) {
    return mx::bfloat16;
  }
  if (d == nb::dtype<uint32_t>()) {
    return mx::uint32;
  }
  if (d == nb::dtype<int32_t>()) {
    return mx::int32;
  }
  if (d.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) &&
      d.bits == 16) {
    return mx::float16;
  }
  throw nb::type_error(
      "float32, float16, uint16 (bfloat16 bits), uint32 or int32 expected");
}

inline mlx::core::array to_mlx(const NumPy& a) {
  namespace mx = mlx::core;
  mx::Shape shape;
  for (size_t i = 0; i < a.ndim(); ++i) {
    shape.push_back(static_cast<int>(a.shape(i)));
  }
  mx::array out(
      mx::allocator::malloc(a.nbytes()),
      std::move(shape),
      dtype_of(a));
  std::memcpy(out.data<char>(), a.data(), a.nbytes());
  return out;
}

/** Evaluates and copies out; bfloat16 as uint16. */
inline nanobind::object to_numpy(const mlx::core::array& lazy) {
  namespace nb = nanobind;
  namespace mx = mlx::core;
  auto a = mx::contiguous(lazy);
  mx::eval(a);
  auto* bytes = new char[a.nbytes() + 1];
  std::memcpy(bytes, a.data<char>(), a.nbytes());
  nb::capsule owner(bytes, [](void* p) noexcept {
    delete[] static_cast<char*>(p);
  });
  std::vector<size_t> shape(a.shape().begin(), a.shape().end());
  nb::dlpack::dtype type = nb::dtype<float>();
  if (a.dtype() == mx::bfloat16) {
    type = nb::dtype<uint16_t>();
  } else if (a.dtype() == mx::float16) {
    type = {static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
  } else if (a.dtype() == mx::int32) {
    type = nb::dtype<int32_t>();
  } else if (a.dtype() == mx::uint32) {
    type = nb::dtype<uint32_t>();
  }
  return nb::cast(nb::ndarray<nb::numpy>(
      bytes,
      shape.size(),
      shape.data(),
      owner,
      nullptr,
      type));
}

} // namespace qwenmtp::testing
