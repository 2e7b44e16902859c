// The scalar functions of Metal that the kernels use, exact on a CPU.
#pragma once
#include <cmath>
#include "msl_types.h"

namespace metal {

MSL_AI float exp(float x) {
  return std::exp(x);
}
MSL_AI float log(float x) {
  return std::log(x);
}
MSL_AI float sqrt(float x) {
  return std::sqrt(x);
}
MSL_AI float rsqrt(float x) {
  return 1.0f / std::sqrt(x);
}
MSL_AI float fma(float a, float b, float c) {
  return std::fma(a, b, c);
}
template <class T>
MSL_AI T abs(T x) {
  return x < T(0) ? T(-x) : x;
}
// As Metal: the other operand when one is NaN.
template <class T>
MSL_AI T max(T a, T b) {
  return (a > b || b != b) ? a : b;
}
template <class T>
MSL_AI T min(T a, T b) {
  return (a < b || b != b) ? a : b;
}
MSL_AI uint popcount(uint x) {
  return uint(__builtin_popcount(x));
}

} // namespace metal
