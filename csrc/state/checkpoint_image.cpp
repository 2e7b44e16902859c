#include "state/checkpoint_image.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/error.h"

namespace qwenmtp::state {
namespace {

Dtype to_dtype(mx::Dtype dtype) {
  if (dtype == mx::bfloat16) {
    return Dtype::bf16;
  }
  if (dtype == mx::float16) {
    return Dtype::f16;
  }
  return dtype == mx::int64 ? Dtype::i64 : Dtype::f32;
}

mx::array ids_array(const std::vector<int64_t>& ids) {
  return mx::array(ids.begin(), {static_cast<int>(ids.size())}, mx::int64);
}

} // namespace

Geometry geometry_of(
    const ModelState& empty,
    int vocab,
    int wide,
    mx::Dtype dtype) {
  Geometry g;
  g.dtype = to_dtype(dtype);
  g.vocab = static_cast<uint32_t>(vocab);
  g.wide = static_cast<uint32_t>(wide);
  auto add_cache = [&](const KvCache& cache) {
    const KvShape& s = cache.shape();
    g.hkv = static_cast<uint32_t>(s.n_kv_heads);
    g.head_dim = static_cast<uint32_t>(s.head_dim);
    g.index_dim = static_cast<uint32_t>(s.index_dim);
    g.pool = static_cast<uint32_t>(s.ratio);
  };
  for (const auto& layer : empty.trunk.layers) {
    if (const auto* cache = std::get_if<KvCache>(&layer.mixer)) {
      g.layers.push_back(LayerKind::qsa);
      add_cache(*cache);
      if (layer.ple) {
        throw InvalidArgument(
            "[checkpoint.geometry] n-gram embedding on an attention layer, "
            "expected a recurrent one");
      }
      continue;
    }
    const auto& gdn = std::get<GdnState>(layer.mixer);
    g.layers.push_back(layer.ple ? LayerKind::ple : LayerKind::gdn);
    g.conv_rows = static_cast<uint32_t>(gdn.conv.shape(0));
    g.conv_dim = static_cast<uint32_t>(gdn.conv.shape(1));
    g.hv = static_cast<uint32_t>(gdn.delta.shape(0));
    g.dv = static_cast<uint32_t>(gdn.delta.shape(1));
    g.dk = static_cast<uint32_t>(gdn.delta.shape(2));
    if (layer.ple) {
      g.ple_rows = static_cast<uint32_t>(layer.ple->conv.shape(0));
      g.ple_context = static_cast<uint32_t>(layer.ple->ids.size());
    }
  }
  if (empty.mtp) {
    add_cache(empty.mtp->cache);
  }
  return g;
}

StateImage::StateImage(
    const ModelState& state,
    Geometry geometry,
    Finish finish,
    std::string meta)
    : geometry_(std::move(geometry)) {
  check_invariants(state);
  if (!state.logits || state.mtp.has_value() != state.hidden.has_value()) {
    throw InvalidArgument(
        "[checkpoint.image] state without the rows of its last token");
  }
  head_.shape.n_tokens = static_cast<uint64_t>(state.len());
  head_.shape.mode = state.mtp ? Mode::mtp : Mode::ar;
  head_.finish = finish;
  head_.ids.assign(state.ids.begin(), state.ids.end());
  head_.meta = std::move(meta);
  add_recurrent(boundary_of(state));
  for (const auto& layer : state.trunk.layers) {
    if (const auto* cache = std::get_if<KvCache>(&layer.mixer)) {
      add_cache(*cache);
    }
  }
  if (state.mtp) {
    head_.shape.history_len = static_cast<uint64_t>(state.mtp->len());
    head_.position_base = state.mtp->base;
    if (state.mtp->len() > 0) {
      add_cache(state.mtp->cache);
    }
  }
  add(*state.logits);
  if (state.hidden) {
    add(*state.hidden);
  }
  for (const Boundary& b : state.boundaries) {
    if (b.hidden.has_value() != state.mtp.has_value()) {
      throw InvalidArgument(
          "[checkpoint.image] boundary without the hidden row of its last "
          "token");
    }
    head_.shape.boundaries.push_back(static_cast<uint64_t>(b.len));
    add_recurrent(b);
    if (b.hidden) {
      add(*b.hidden);
    }
  }
  seal();
}

void StateImage::seal() {
  std::vector<mx::array> arrays;
  for (const Part& part : parts_) {
    arrays.push_back(part.array);
  }
  mx::eval(arrays);
  auto specs = schema(geometry_, head_.shape);
  for (size_t i = 0; i < std::max(specs.size(), parts_.size()); ++i) {
    if (i >= specs.size() || i >= parts_.size() ||
        to_dtype(parts_[i].array.dtype()) != specs[i].dtype ||
        parts_[i].n_bytes != specs[i].n_bytes()) {
      throw InternalError(
          "[checkpoint.image] tensor " + std::to_string(i) +
          " differs from the schema");
    }
    const Part& p = parts_[i];
    sources_.push_back(
        {reinterpret_cast<const std::byte*>(p.array.data<char>()),
         p.run_bytes,
         p.stride_bytes});
  }
  n_bytes_ = checkpoint_bytes(geometry_, head_.shape, head_.meta.size());
}

void StateImage::add(const mx::array& a) {
  parts_.push_back({mx::contiguous(a), a.nbytes(), a.nbytes(), a.nbytes()});
}

void StateImage::add_recurrent(const Boundary& boundary) {
  for (const auto& layer : boundary.layers) {
    if (layer.gdn) {
      if (!layer.gdn->waiting.empty()) {
        throw InternalError("[checkpoint.image] rows wait for a forward");
      }
      add(layer.gdn->conv);
      add(layer.gdn->delta);
    }
    if (layer.ple) {
      add(layer.ple->conv);
      add(ids_array(layer.ple->ids));
    }
  }
}

void StateImage::add_cache(const KvCache& cache) {
  // The slabs themselves: their logical rows are one run a head.
  auto slabs = cache.slabs();
  for (size_t i = 0; i < slabs.size(); ++i) {
    const mx::array& slab = slabs[i];
    const bool pooled = i == 3;
    const auto rows =
        static_cast<uint64_t>(pooled ? cache.n_blocks() : cache.len());
    if (rows == 0) {
      continue;
    }
    const uint64_t row = slab.shape(-1) * slab.itemsize();
    const uint64_t n_runs = slab.ndim() == 3 ? slab.shape(0) : 1;
    parts_.push_back(
        {mx::contiguous(slab),
         n_runs * rows * row,
         rows * row,
         slab.shape(-2) * row});
  }
}

void StateImage::write(
    int dir_fd,
    const std::string& name,
    const Digest& identity,
    const Digest& owner,
    const WriteOptions& options) const {
  CheckpointHead head = head_;
  head.identity = identity;
  head.owner = owner;
  std::random_device entropy;
  std::ranges::generate(head.writer_id, [&] {
    return static_cast<uint8_t>(entropy());
  });
  using std::chrono::nanoseconds;
  head.created_ns = static_cast<uint64_t>(
      std::chrono::duration_cast<nanoseconds>(
          std::chrono::system_clock::now().time_since_epoch())
          .count());
  write_checkpoint(dir_fd, name, head, geometry_, sources_, options);
}

} // namespace qwenmtp::state
