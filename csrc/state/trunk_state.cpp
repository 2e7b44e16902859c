#include "state/trunk_state.h"

namespace qwenmtp::state {

std::vector<mx::array> arrays(const TrunkState& state) {
  std::vector<mx::array> all;
  for (const auto& layer : state.layers) {
    if (const auto* gdn = std::get_if<GdnState>(&layer.mixer)) {
      all.push_back(gdn->conv);
      all.push_back(gdn->delta);
      all.insert(all.end(), gdn->waiting.begin(), gdn->waiting.end());
    } else {
      for (auto& a : std::get<KvCache>(layer.mixer).buffers()) {
        all.push_back(a);
      }
    }
    if (layer.ple) {
      all.push_back(layer.ple->conv);
    }
  }
  return all;
}

std::vector<mx::array> arrays(const MtpState& state) {
  return state.cache.buffers();
}

} // namespace qwenmtp::state
