#include "state/schema.h"

#include <algorithm>
#include <optional>

namespace qwenmtp::state {
namespace {

/** Collects the specs of one state. */
class Builder {
 public:
  Builder(const Geometry& g, std::vector<TensorSpec>& out) : g_(g), out_(out) {
  }

  /** What a boundary record and the trunk's frontier both hold. */
  void recurrent(Group group, uint16_t boundary) {
    for (size_t i = 0; i < g_.layers.size(); ++i) {
      if (g_.layers[i] == LayerKind::qsa) {
        continue;
      }
      auto add =
          [&](Role role, Dtype dtype, std::initializer_list<uint32_t> d) {
            put(group, role, i, boundary, dtype, d, 0);
          };
      add(Role::gdn_conv, g_.dtype, {1, g_.conv_rows, g_.conv_dim});
      add(Role::gdn_ssm, Dtype::f32, {1, g_.hv, g_.dv, g_.dk});
      if (g_.layers[i] == LayerKind::ple) {
        add(Role::ple_conv, g_.dtype, {1, g_.ple_rows, g_.wide});
        add(Role::ple_ids, Dtype::i64, {1, g_.ple_context});
      }
    }
  }

  void qsa(Group group, size_t layer, uint64_t n_rows) {
    auto rows = static_cast<uint32_t>(n_rows);
    auto add = [&](Role role, std::initializer_list<uint32_t> d, uint32_t n) {
      put(group, role, layer, kNoBoundary, g_.dtype, d, n);
    };
    add(Role::keys, {1, g_.hkv, rows, g_.head_dim}, rows);
    add(Role::values, {1, g_.hkv, rows, g_.head_dim}, rows);
    add(Role::raw, {1, rows, g_.index_dim}, rows);
    if (uint32_t pooled = rows / g_.pool; pooled > 0) {
      add(Role::pooled, {1, pooled, g_.index_dim}, pooled);
    }
  }

  void logits() {
    put(Group::final, Role::logits, 0, kNoBoundary, g_.dtype, {1, g_.vocab}, 0);
  }

  void hidden(Group group, uint16_t boundary) {
    put(group, Role::hidden, 0, boundary, g_.dtype, {1, 1, g_.wide}, 0);
  }

 private:
  void put(
      Group group,
      Role role,
      size_t layer,
      uint16_t boundary,
      Dtype dtype,
      std::initializer_list<uint32_t> dims,
      uint64_t rows) {
    TensorSpec spec{
        group,
        role,
        static_cast<uint16_t>(layer),
        boundary,
        dtype,
        static_cast<uint8_t>(dims.size()),
        {1, 1, 1, 1},
        rows};
    std::ranges::copy(dims, spec.dims.begin());
    out_.push_back(spec);
  }

  const Geometry& g_;
  std::vector<TensorSpec>& out_;
};

uint64_t item_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::i64:
      return 8;
    case Dtype::f32:
      return 4;
    case Dtype::f16:
    case Dtype::bf16:
      return 2;
  }
  return 0;
}

/** Smallest pool size that gives pooled rows out of rows. */
uint64_t least_pool(uint64_t rows, uint64_t pooled) {
  return rows / (pooled + 1) + 1;
}

} // namespace

uint64_t TensorSpec::n_bytes() const {
  uint64_t n = item_bytes(dtype);
  for (uint32_t d : dims) {
    n *= d;
  }
  return n;
}

std::vector<TensorSpec> schema(const Geometry& g, const StateShape& shape) {
  std::vector<TensorSpec> specs;
  Builder add(g, specs);
  const bool mtp = shape.mode == Mode::mtp;
  add.recurrent(Group::trunk, kNoBoundary);
  for (size_t i = 0; i < g.layers.size(); ++i) {
    if (g.layers[i] == LayerKind::qsa) {
      add.qsa(Group::trunk, i, shape.n_tokens);
    }
  }
  if (mtp && shape.history_len > 0) {
    add.qsa(Group::mtp, 0, shape.history_len);
  }
  add.logits();
  if (mtp) {
    add.hidden(Group::final, kNoBoundary);
  }
  for (size_t b = 0; b < shape.boundaries.size(); ++b) {
    add.recurrent(Group::boundary, static_cast<uint16_t>(b));
    if (mtp) {
      add.hidden(Group::boundary, static_cast<uint16_t>(b));
    }
  }
  return specs;
}

uint64_t payload_bytes(const Geometry& g, const StateShape& shape) {
  uint64_t n = 0;
  for (const auto& spec : schema(g, shape)) {
    n += spec.n_bytes();
  }
  return n;
}

Geometry infer_geometry(
    std::span<const TensorSpec> specs,
    const StateShape& shape) {
  Geometry g;
  std::optional<uint64_t> trunk_pooled;
  uint64_t history_pooled = 0;
  for (const auto& s : specs) {
    if (s.group == Group::trunk) {
      if (s.layer >= kMaxTensors) {
        continue;
      }
      if (g.layers.size() <= s.layer) {
        g.layers.resize(s.layer + 1, LayerKind::gdn);
      }
      if (s.role == Role::ple_conv) {
        g.layers[s.layer] = LayerKind::ple;
      } else if (s.role == Role::keys) {
        g.layers[s.layer] = LayerKind::qsa;
        trunk_pooled = trunk_pooled.value_or(0);
      }
    }
    switch (s.role) {
      case Role::gdn_conv:
        g.conv_rows = s.dims[1];
        g.conv_dim = s.dims[2];
        break;
      case Role::gdn_ssm:
        g.hv = s.dims[1];
        g.dv = s.dims[2];
        g.dk = s.dims[3];
        break;
      case Role::ple_conv:
        g.ple_rows = s.dims[1];
        g.wide = s.dims[2];
        break;
      case Role::ple_ids:
        g.ple_context = s.dims[1];
        break;
      case Role::keys:
        g.hkv = s.dims[1];
        g.head_dim = s.dims[3];
        break;
      case Role::raw:
        g.index_dim = s.dims[2];
        break;
      case Role::pooled:
        (s.group == Group::trunk ? trunk_pooled.emplace() : history_pooled) =
            s.dims[1];
        break;
      case Role::logits:
        g.dtype = s.dtype;
        g.vocab = s.dims[1];
        break;
      case Role::hidden:
        g.wide = s.dims[2];
        break;
      case Role::values:
        break;
    }
  }
  uint64_t pool = least_pool(shape.history_len, history_pooled);
  if (trunk_pooled) {
    pool = std::max(pool, least_pool(shape.n_tokens, *trunk_pooled));
  }
  g.pool = static_cast<uint32_t>(pool);
  return g;
}

} // namespace qwenmtp::state
