/** Intermediate arrays by name, for the goldens. Costs nothing when nobody
 *  listens; only the test extension does. */
#pragma once

#include <map>
#include <string>

#include <mlx/mlx.h>

namespace qwenmtp::model {

using Trace = std::map<std::string, mlx::core::array>;

/** Names arrays, under a layer's prefix ("L3."), into a trace that may be
 *  absent. */
class Tracer {
 public:
  explicit Tracer(Trace* trace = nullptr, std::string prefix = "")
      : trace_(trace), prefix_(std::move(prefix)) {
  }

  bool on() const {
    return trace_ != nullptr;
  }
  Tracer layer(size_t index) const {
    return on()
               ? Tracer(
                     trace_,
                     std::string("L").append(std::to_string(index)).append("."))
               : Tracer();
  }
  void operator()(const char* name, const mlx::core::array& a) const {
    if (on()) {
      trace_->insert_or_assign(prefix_ + name, a);
    }
  }

 private:
  Trace* trace_;
  std::string prefix_;
};

} // namespace qwenmtp::model
