#include "decode/walk.h"

#include <set>

#include <mlx/primitives.h>

namespace qwenmtp::decode {

bool is_view(const std::string& name) {
  static const std::set<std::string> views = {
      "Broadcast",
      "Depends",
      "ExpandDims",
      "Flatten",
      "Reshape",
      "Slice",
      "Split",
      "Squeeze",
      "StopGradient",
      "Transpose",
      "Unflatten",
      "View"};
  return views.contains(name);
}

void Walk::operator()(
    const std::vector<mx::array>& roots,
    const std::function<void(const mx::array&)>& visit) {
  std::vector<mx::array> stack = roots;
  while (!stack.empty()) {
    const mx::array a = std::move(stack.back());
    stack.pop_back();
    if (a.has_primitive() && a.status() == mx::array::Status::unscheduled &&
        seen_.insert(a.primitive_id()).second) {
      visit(a);
      stack.insert(stack.end(), a.inputs().begin(), a.inputs().end());
    }
  }
}

} // namespace qwenmtp::decode
