#include "state/model_state.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/error.h"

namespace qwenmtp::state {

namespace {

void require(bool ok, const std::string& rule) {
  if (!ok) {
    throw InternalError("[state.check] " + rule);
  }
}

void add_cache(
    std::vector<NamedTensor>& out,
    const std::string& prefix,
    const KvCache& cache) {
  out.push_back({prefix + "keys", cache.keys(0, cache.len())});
  out.push_back({prefix + "values", cache.values(0, cache.len())});
  out.push_back({prefix + "raw", cache.raw(0, cache.len())});
  if (cache.n_blocks() > 0) {
    out.push_back({prefix + "pooled", cache.pooled(0, cache.n_blocks())});
  }
}

std::string layer_prefix(size_t index) {
  return std::string("trunk.").append(std::to_string(index)).append(".");
}

/** Index of the first element whose bytes differ, in [0, size). */
size_t first_index(const mx::array& a, const mx::array& b) {
  size_t item = a.itemsize();
  size_t i = 0;
  while (
      std::memcmp(a.data<char>() + i * item, b.data<char>() + i * item, item) ==
      0) {
    i++;
  }
  return i;
}

std::string element(const mx::array& a, size_t index) {
  auto flat = mx::astype(mx::flatten(a), mx::float32);
  auto one = mx::take(flat, static_cast<int>(index));
  std::ostringstream text;
  text.precision(9);
  text << one.item<float>();
  return text.str();
}

} // namespace

void check_invariants(const ModelState& s) {
  int n = s.trunk.len;
  require(
      s.ids.size() == static_cast<size_t>(n),
      std::to_string(s.ids.size()) + " ids, expected " + std::to_string(n));
  require(s.trunk.window == 0, "an open window, expected a committed state");
  for (const auto& layer : s.trunk.layers) {
    if (const auto* cache = std::get_if<KvCache>(&layer.mixer)) {
      require(
          cache->len() == n,
          std::to_string(cache->len()) + " attention rows, expected " +
              std::to_string(n));
    }
    if (layer.ple) {
      auto known = std::min(layer.ple->ids.size(), s.ids.size());
      require(
          std::equal(
              layer.ple->ids.end() - static_cast<int64_t>(known),
              layer.ple->ids.end(),
              s.ids.end() - static_cast<int64_t>(known)),
          "n-gram ids are not the last ids");
    }
  }
  int last = 0;
  for (const Boundary& b : s.boundaries) {
    require(
        b.len > last && b.len <= n,
        "boundary at " + std::to_string(b.len) + " behind " +
            std::to_string(last) + " of " + std::to_string(n) + " tokens");
    last = b.len;
  }
  if (s.mtp && n > 0) {
    require(
        s.mtp->base + s.mtp->len() == n - 1,
        "history of " + std::to_string(s.mtp->base) + " + " +
            std::to_string(s.mtp->len()) + " rows, expected " +
            std::to_string(n - 1));
  }
}

Boundary boundary_of(const ModelState& s) {
  Boundary out;
  out.len = s.len();
  for (const auto& layer : s.trunk.layers) {
    const auto* gdn = std::get_if<GdnState>(&layer.mixer);
    out.layers.push_back({gdn ? std::optional(*gdn) : std::nullopt, layer.ple});
  }
  if (s.mtp) {
    out.hidden = s.hidden;
  }
  return out;
}

void rewind(ModelState& s, const Boundary& to) {
  const int len = to.len;
  s.hidden = to.hidden;
  s.logits.reset();
  for (size_t i = 0; i < s.trunk.layers.size(); i++) {
    auto& layer = s.trunk.layers[i];
    if (auto* cache = std::get_if<KvCache>(&layer.mixer)) {
      cache->truncate(len);
    } else {
      layer.mixer = *to.layers[i].gdn;
    }
    layer.ple = to.layers[i].ple;
    layer.gdn_window.reset();
    layer.ple_window.reset();
  }
  s.trunk.len = len;
  s.trunk.window = 0;
  s.ids.resize(static_cast<size_t>(len));
  if (s.mtp) {
    // A history that began later has nothing to say about the boundary.
    const int rows = std::max(len - 1, 0);
    s.mtp->base = std::min(s.mtp->base, rows);
    s.mtp->cache.truncate(std::min(s.mtp->len(), rows - s.mtp->base));
  }
  // `to` may be one of them.
  std::erase_if(s.boundaries, [len](const Boundary& b) { return b.len > len; });
}

size_t held_bytes(const ModelState& s) {
  size_t n = 0;
  auto count = [&n](const auto& all) {
    for (const auto& a : all) {
      n += a.nbytes();
    }
  };
  count(arrays(s.trunk));
  if (s.mtp) {
    count(arrays(*s.mtp));
  }
  auto one = [&n](const std::optional<mx::array>& a) {
    n += a ? a->nbytes() : 0;
  };
  one(s.logits);
  one(s.hidden);
  for (const Boundary& b : s.boundaries) {
    one(b.hidden);
    for (const auto& layer : b.layers) {
      if (layer.gdn) {
        n += layer.gdn->conv.nbytes() + layer.gdn->delta.nbytes();
      }
      n += layer.ple ? layer.ple->conv.nbytes() : 0;
    }
  }
  return n;
}

std::vector<NamedTensor> tensors(const ModelState& s) {
  std::vector<NamedTensor> out;
  for (size_t i = 0; i < s.trunk.layers.size(); i++) {
    const auto& layer = s.trunk.layers[i];
    if (const auto* gdn = std::get_if<GdnState>(&layer.mixer)) {
      out.push_back({layer_prefix(i) + "gdn_conv", gdn->conv});
      out.push_back({layer_prefix(i) + "gdn_ssm", gdn->delta});
    }
    if (layer.ple) {
      const auto& ids = layer.ple->ids;
      out.push_back({layer_prefix(i) + "ple_conv", layer.ple->conv});
      out.push_back(
          {layer_prefix(i) + "ple_ids",
           mx::array(ids.begin(), {static_cast<int>(ids.size())}, mx::int64)});
    }
  }
  for (size_t i = 0; i < s.trunk.layers.size(); i++) {
    if (const auto* cache = std::get_if<KvCache>(&s.trunk.layers[i].mixer)) {
      add_cache(out, layer_prefix(i), *cache);
    }
  }
  if (s.mtp) {
    add_cache(out, "mtp.", s.mtp->cache);
  }
  if (s.logits) {
    out.push_back({"final.logits", *s.logits});
  }
  if (s.hidden) {
    out.push_back({"final.hidden", *s.hidden});
  }
  return out;
}

std::optional<std::string> first_difference(
    const ModelState& a,
    const ModelState& b) {
  if (a.ids != b.ids) {
    auto at =
        std::mismatch(a.ids.begin(), a.ids.end(), b.ids.begin(), b.ids.end());
    return "ids[" + std::to_string(at.first - a.ids.begin()) + "] of " +
           std::to_string(a.ids.size()) + " and " +
           std::to_string(b.ids.size());
  }
  auto left = tensors(a);
  auto right = tensors(b);
  for (size_t i = 0; i < std::max(left.size(), right.size()); i++) {
    if (i >= left.size() || i >= right.size() ||
        left[i].name != right[i].name) {
      return (i < left.size() ? left : right)[i].name + ": in one state only";
    }
    auto x = mx::contiguous(left[i].value);
    auto y = mx::contiguous(right[i].value);
    if (x.shape() != y.shape() || x.dtype() != y.dtype()) {
      return left[i].name + ": another shape or dtype";
    }
    mx::eval(x, y);
    if (std::memcmp(x.data<char>(), y.data<char>(), x.nbytes()) != 0) {
      auto index = first_index(x, y);
      return left[i].name + "[" + std::to_string(index) +
             "]: " + element(x, index) + ", " + element(y, index);
    }
  }
  return std::nullopt;
}

} // namespace qwenmtp::state
