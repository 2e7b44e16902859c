/** What every launcher of csrc/kernels gives to a test. */
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "arrays.h"

namespace qwenmtp::testing {

namespace nb = nanobind;
namespace mx = mlx::core;

inline constexpr auto kCpu = mx::Device::cpu;

inline mx::array rows_of(std::vector<mx::array> parts, int axis) {
  return mx::concatenate(std::move(parts), axis, kCpu);
}

/** A launch with its arguments: run() gives the outputs, seconds(n) the time of
 * n such nodes in one evaluation. */
struct Launch {
  std::function<std::vector<mx::array>()> build;

  nb::list run() const {
    nb::list out;
    for (const mx::array& a : build()) {
      out.append(to_numpy(a));
    }
    return out;
  }

  double seconds(int repeats) const {
    auto start = std::chrono::steady_clock::now();
    std::vector<mx::array> outputs;
    for (int i = 0; i < repeats; ++i) {
      for (mx::array& a : build()) {
        outputs.push_back(std::move(a));
      }
    }
    mx::eval(outputs);
    return std::chrono::duration<double>(
               std::chrono::steady_clock::now() - start)
        .count();
  }
};

/** The launchers of GDN and QSA. */
void register_mixers(nb::module_& m);

} // namespace qwenmtp::testing
