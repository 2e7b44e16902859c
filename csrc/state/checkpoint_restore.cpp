#include "state/checkpoint_restore.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace qwenmtp::state {
namespace {

constexpr int kSlabStep = 256; // rows; as KvCache grows

mx::Dtype from_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::i64:
      return mx::int64;
    case Dtype::f16:
      return mx::float16;
    case Dtype::bf16:
      return mx::bfloat16;
    case Dtype::f32:
      return mx::float32;
  }
  throw InternalError("[state.dtype] unknown dtype");
}

/** An evaluated array of fresh memory. */
mx::array fresh(const mx::Shape& shape, mx::Dtype dtype) {
  size_t n = mx::size_of(dtype);
  for (int d : shape) {
    n *= static_cast<size_t>(d);
  }
  return mx::array(mx::allocator::malloc(n), shape, dtype);
}

std::byte* bytes_of(mx::array& a) {
  return reinterpret_cast<std::byte*>(a.data<char>());
}

/** Arrays for the tensors of one header, handed out in its order. Row tensors
 *  get room for spare_rows more tokens. */
class Arena {
 public:
  Arena(const Header& header, int spare_rows, int pool)
      : header_(header), spare_rows_(spare_rows), pool_(pool) {
    for (const Extent& e : header.extents) {
      arrays_.push_back(allocate(e.spec));
      auto& a = arrays_.back();
      const bool heads = e.spec.rows > 0 && a.ndim() == 3;
      const uint64_t n_runs = heads ? e.spec.dims[1] : 1;
      runs_.push_back({bytes_of(a), e.n_bytes / n_runs, a.nbytes() / n_runs});
    }
  }

  Destination place(size_t i) const {
    return runs_[i];
  }

  mx::array take() {
    return std::move(arrays_[next_++]);
  }

  /** The slabs of one attention layer after len tokens. */
  KvCache take_cache(const KvShape& shape, int len) {
    auto keys = take();
    auto values = take();
    auto raw = take();
    auto pooled = len / pool_ > 0
                      ? take()
                      : mx::zeros(
                            {(len + spare_rows_) / pool_, shape.index_dim},
                            keys.dtype());
    return KvCache(shape, keys, values, raw, pooled, len);
  }

 private:
  /** The tensor without its leading 1. */
  mx::array allocate(const TensorSpec& s) const {
    mx::Shape shape(s.dims.begin() + 1, s.dims.begin() + s.rank);
    if (s.role == Role::hidden) {
      shape.erase(shape.begin());
    }
    if (s.rows == 0) {
      return fresh(shape, from_dtype(s.dtype));
    }
    const StateShape& state = header_.head.shape;
    const auto n = static_cast<int>(
        s.group == Group::mtp ? state.history_len : state.n_tokens);
    const int cap = n + spare_rows_;
    int& rows = shape[shape.size() - 2];
    rows = s.role == Role::pooled ? cap / pool_ : cap;
    auto a = fresh(shape, from_dtype(s.dtype));
    // Rows past the end are finite, whoever reads them by mistake.
    const size_t row = shape.back() * a.itemsize();
    const size_t slab = rows * row;
    for (size_t at = 0; at < a.nbytes(); at += slab) {
      std::memset(bytes_of(a) + at + s.rows * row, 0, slab - s.rows * row);
    }
    return a;
  }

  const Header& header_;
  int spare_rows_;
  int pool_;
  std::vector<mx::array> arrays_;
  std::vector<Destination> runs_;
  size_t next_ = 0;
};

std::vector<int64_t> to_ids(const mx::array& a) {
  return {a.data<int64_t>(), a.data<int64_t>() + a.size()};
}

/** The recurrent layers from the arena, in schema order, shaped as those of s.
 */
Boundary take_recurrent(Arena& arena, const ModelState& s, uint64_t len) {
  Boundary out;
  out.len = static_cast<int>(len);
  for (const auto& layer : s.trunk.layers) {
    Boundary::Layer taken;
    if (std::holds_alternative<GdnState>(layer.mixer)) {
      auto conv = arena.take();
      taken.gdn = GdnState{std::move(conv), arena.take()};
    }
    if (layer.ple) {
      auto conv = arena.take();
      taken.ple = PleState{std::move(conv), to_ids(arena.take())};
    }
    out.layers.push_back(std::move(taken));
  }
  return out;
}

/** The whole state of a file that was read into the arena. */
void take_state(Arena& arena, const CheckpointHead& head, ModelState& s) {
  const int n = static_cast<int>(head.shape.n_tokens);
  s.ids.assign(head.ids.begin(), head.ids.end());
  s.trunk.len = n;
  Boundary now = take_recurrent(arena, s, head.shape.n_tokens);
  for (size_t i = 0; i < s.trunk.layers.size(); i++) {
    auto& layer = s.trunk.layers[i];
    if (auto* cache = std::get_if<KvCache>(&layer.mixer)) {
      *cache = arena.take_cache(cache->shape(), n);
    } else {
      layer.mixer = std::move(*now.layers[i].gdn);
    }
    layer.ple = std::move(now.layers[i].ple);
  }
  if (s.mtp) {
    const int rows = static_cast<int>(head.shape.history_len);
    s.mtp->base = static_cast<int>(head.position_base);
    if (rows > 0) {
      s.mtp->cache = arena.take_cache(s.mtp->cache.shape(), rows);
    }
  }
  s.logits = arena.take();
  if (s.mtp) {
    s.hidden = arena.take();
  }
  for (uint64_t len : head.shape.boundaries) {
    s.boundaries.push_back(take_recurrent(arena, s, len));
    if (s.mtp) {
      s.boundaries.back().hidden = arena.take();
    }
  }
}

/** Tokens a pooled row; any where no layer has attention. */
int pool_of(const ModelState& s) {
  for (const auto& layer : s.trunk.layers) {
    if (const auto* cache = std::get_if<KvCache>(&layer.mixer)) {
      return cache->shape().ratio;
    }
  }
  return s.mtp ? s.mtp->cache.shape().ratio : 1;
}

} // namespace

ModelState read_state(
    const CheckpointFile& file,
    const Header& header,
    ModelState empty,
    int spare_rows,
    std::optional<size_t> boundary,
    const std::atomic<bool>* cancel) {
  const StateShape& shape = header.head.shape;
  const int n = static_cast<int>(shape.n_tokens);
  if (boundary && *boundary >= shape.boundaries.size()) {
    throw InvalidArgument(
        "[checkpoint.read] boundary " + std::to_string(*boundary) + " of " +
        std::to_string(shape.boundaries.size()));
  }
  const int cap = (n + spare_rows + kSlabStep - 1) / kSlabStep * kSlabStep;
  std::optional<Arena> arena;
  try {
    arena.emplace(header, cap - n, pool_of(empty));
  } catch (const std::exception& e) {
    throw CheckpointError(
        "busy",
        "memory",
        std::string("[checkpoint.read] ") + e.what());
  }
  file.read(header, [&](size_t i) { return arena->place(i); }, cancel);

  ModelState s = std::move(empty);
  take_state(*arena, header.head, s);
  if (boundary) {
    rewind(s, s.boundaries[*boundary]);
  }
  try {
    check_invariants(s);
  } catch (const InternalError& e) {
    throw CheckpointError(
        "corrupt",
        "invariant",
        std::string("[checkpoint.read] ") + e.what());
  }
  return s;
}

} // namespace qwenmtp::state
