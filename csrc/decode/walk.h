/** Goes through lazy graphs and visits each node once. Evaluates nothing. */
#pragma once

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include <mlx/mlx.h>

namespace qwenmtp::decode {

namespace mx = mlx::core;

/** Whether nodes of this name only name other parts of a buffer. */
bool is_view(const std::string& name);

class Walk {
 public:
  /** Visits the nodes that lead to `roots` and were not seen before. */
  void operator()(
      const std::vector<mx::array>& roots,
      const std::function<void(const mx::array&)>& visit);

 private:
  std::unordered_set<std::uintptr_t> seen_;
};

} // namespace qwenmtp::decode
