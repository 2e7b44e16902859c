/** Picks the bodies by what the machine runs. */
#include <atomic>

#include "base/error.h"
#include "kernels/cpu/body.h"

namespace qwenmtp::kernels::cpu {

#if defined(__x86_64__)
namespace x86_64_v3 {
extern const Bodies kBodies;
}
namespace x86_64_v4 {
extern const Bodies kBodies;
}
#else
namespace neon {
extern const Bodies kBodies;
}
#endif

namespace {

std::vector<const Bodies*> runnable() {
  std::vector<const Bodies*> sets;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    sets.push_back(&x86_64_v3::kBodies);
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
      sets.push_back(&x86_64_v4::kBodies);
    }
  }
#else
  sets.push_back(&neon::kBodies);
#endif
  return sets;
}

std::atomic<const Bodies*> in_use{nullptr};

} // namespace

const Bodies& bodies() {
  const Bodies* set = in_use.load(std::memory_order_relaxed);
  if (set == nullptr) {
    std::vector<const Bodies*> sets = runnable();
    if (sets.empty()) {
      throw DeviceError(
          "[kernels.bodies] this CPU lacks AVX2 or FMA, expected x86-64-v3");
    }
    set = sets.back();
    in_use.store(set, std::memory_order_relaxed);
  }
  return *set;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Bodies* set : runnable()) {
    names.emplace_back(set->isa);
  }
  return names;
}

void select_isa(const std::string& name) {
  for (const Bodies* set : runnable()) {
    if (name == set->isa) {
      in_use.store(set, std::memory_order_relaxed);
      return;
    }
  }
  throw InvalidArgument(
      "[kernels.select_isa] " + name + ", expected one of available_isas()");
}

} // namespace qwenmtp::kernels::cpu
