/** Checkpoints under test: states made of plain bytes instead of a model's
 *  arrays, a hook behind every step of the writer, and the allocation count. */
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>

#include <csignal>
#include <memory>

#include "bindings/checkpoint.h"
#include "testing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qwenmtp::testing {
namespace {

using bindings::from_bytes;
using state::CheckpointHead;
using state::Geometry;
using state::LayerKind;

/** {"layers": ["gdn", "ple", "qsa"], "vocab": 512, ...} by field names. */
Geometry geometry_from(const nb::dict& d) {
  Geometry g;
  for (nb::handle kind : nb::list(d["layers"])) {
    auto name = nb::cast<std::string>(kind);
    g.layers.push_back(
        name == "qsa"   ? LayerKind::qsa
        : name == "ple" ? LayerKind::ple
                        : LayerKind::gdn);
  }
  auto take = [&](const char* key, auto& field) {
    if (d.contains(key)) {
      field = static_cast<std::remove_reference_t<decltype(field)>>(
          nb::cast<uint32_t>(d[key]));
    }
  };
  take("dtype", g.dtype);
  take("vocab", g.vocab);
  take("wide", g.wide);
  take("conv_rows", g.conv_rows);
  take("conv_dim", g.conv_dim);
  take("hv", g.hv);
  take("dv", g.dv);
  take("dk", g.dk);
  take("ple_rows", g.ple_rows);
  take("ple_context", g.ple_context);
  take("hkv", g.hkv);
  take("head_dim", g.head_dim);
  take("index_dim", g.index_dim);
  take("pool", g.pool);
  return g;
}

state::StateShape shape_from(const nb::dict& d) {
  return {
      nb::cast<uint64_t>(d["n_tokens"]),
      nb::cast<uint64_t>(d["history_len"]),
      nb::cast<std::string>(d["mode"]) == "mtp" ? state::Mode::mtp
                                                : state::Mode::ar,
      nb::cast<std::vector<uint64_t>>(d["boundaries"])};
}

CheckpointHead head_from(const nb::dict& d) {
  CheckpointHead head;
  head.shape = shape_from(d);
  head.position_base = nb::cast<int64_t>(d["position_base"]);
  head.finish = static_cast<state::Finish>(nb::cast<uint32_t>(d["finish"]));
  head.created_ns = nb::cast<uint64_t>(d["created_ns"]);
  head.identity = from_bytes<state::Digest>(nb::cast<nb::bytes>(d["identity"]));
  head.owner = from_bytes<state::Digest>(nb::cast<nb::bytes>(d["owner"]));
  head.writer_id =
      from_bytes<std::array<uint8_t, 16>>(nb::cast<nb::bytes>(d["writer_id"]));
  head.ids = nb::cast<std::vector<uint32_t>>(d["ids"]);
  head.meta = nb::cast<std::string>(d["meta"]);
  return head;
}

/** Runs of a tensor in a slab whose token axis has spare rows behind it. */
template <typename Byte>
state::Runs<Byte> runs_in(
    Byte* data,
    const state::TensorSpec& spec,
    uint64_t spare) {
  bool heads =
      spec.role == state::Role::keys || spec.role == state::Role::values;
  uint64_t n_runs = heads ? spec.dims[1] : 1;
  uint64_t run = spec.n_bytes() / n_runs;
  uint64_t row = heads ? run / spec.dims[2] : 0;
  return {data, run, run + spare * row};
}

uint64_t slab_bytes(const state::TensorSpec& spec, uint64_t spare) {
  auto runs = runs_in(static_cast<std::byte*>(nullptr), spec, spare);
  return spec.n_bytes() / runs.run_bytes * runs.stride_bytes;
}

/** Calls a Python hook, or kills this process at the nth step. */
std::function<void(const char*)> hook(
    const std::optional<nb::callable>& after,
    int64_t kill_at) {
  auto left = std::make_shared<std::atomic<int64_t>>(kill_at);
  return [&after, left](const char* step) {
    if (left->fetch_sub(1) == 0) {
      ::kill(::getpid(), SIGKILL);
    }
    if (after) {
      nb::gil_scoped_acquire acquire;
      (*after)(step);
    }
  };
}

uint64_t write(
    int dir_fd,
    const std::string& name,
    const nb::dict& geometry,
    const nb::dict& head,
    const std::vector<nb::bytes>& tensors,
    const std::string& durability,
    bool tensor_hashes,
    uint64_t spare,
    const std::optional<nb::callable>& after,
    const std::optional<std::string>& cancel_at,
    int64_t kill_at) {
  Geometry g = geometry_from(geometry);
  CheckpointHead h = head_from(head);
  auto specs = state::schema(g, h.shape);
  std::vector<std::vector<std::byte>> slabs;
  std::vector<state::Source> sources;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* data = static_cast<const std::byte*>(tensors[i].data());
    if (i >= specs.size() || tensors[i].size() != specs[i].n_bytes()) {
      throw InvalidArgument("[testing.write] tensor " + std::to_string(i));
    }
    if (spare == 0) {
      sources.push_back(runs_in(data, specs[i], 0));
      continue;
    }
    auto& slab = slabs.emplace_back(slab_bytes(specs[i], spare));
    auto runs = runs_in(slab.data(), specs[i], spare);
    for (uint64_t at = 0; at < tensors[i].size(); at += runs.run_bytes) {
      std::copy_n(
          data + at,
          runs.run_bytes,
          slab.data() + at / runs.run_bytes * runs.stride_bytes);
    }
    sources.push_back({slab.data(), runs.run_bytes, runs.stride_bytes});
  }
  std::atomic<bool> cancel{false};
  state::WriteOptions options;
  options.durability = durability == "none"   ? base::Durability::none
                       : durability == "full" ? base::Durability::full
                                              : base::Durability::barrier;
  options.tensor_hashes = tensor_hashes;
  options.cancel = &cancel;
  auto call = hook(after, kill_at);
  options.after = [&](const char* step) {
    call(step);
    if (cancel_at && *cancel_at == step) {
      cancel = true;
    }
  };
  nb::gil_scoped_release release;
  return state::write_checkpoint(dir_fd, name, h, g, sources, options);
}

/** Everything of one file; tensors as bytes. */
nb::dict read(
    int dir_fd,
    const std::string& name,
    const std::optional<nb::dict>& geometry,
    const std::optional<nb::bytes>& identity,
    const std::optional<nb::bytes>& owner,
    uint64_t max_context,
    uint64_t max_payload,
    uint64_t spare,
    bool cancelled) {
  state::Expectation expect;
  if (geometry) {
    expect.geometry = geometry_from(*geometry);
  }
  expect.identity = bindings::digest_or_none(identity);
  expect.owner = bindings::digest_or_none(owner);
  expect.max_context = max_context;
  expect.max_payload = max_payload;
  std::atomic<bool> cancel{cancelled};

  state::CheckpointFile file(dir_fd, name);
  state::Prologue prologue = file.prologue(expect);
  state::Header header = file.header(expect);
  std::vector<std::unique_ptr<std::byte[]>> slabs(header.extents.size());
  {
    nb::gil_scoped_release release;
    auto place = [&](size_t i) {
      const auto& spec = header.extents[i].spec;
      slabs[i].reset(new std::byte[slab_bytes(spec, spare)]);
      return runs_in(slabs[i].get(), spec, spare);
    };
    file.read(header, place, &cancel);
  }
  nb::dict out = bindings::prologue_dict(prologue);
  out["ids"] = header.head.ids;
  out["boundaries"] = header.head.shape.boundaries;
  out["meta"] = nb::bytes(header.head.meta.data(), header.head.meta.size());
  nb::list specs;
  nb::list tensors;
  for (size_t i = 0; i < slabs.size(); ++i) {
    const auto& spec = header.extents[i].spec;
    specs.append(bindings::extent_tuple(header.extents[i]));
    auto runs = runs_in(slabs[i].get(), spec, spare);
    std::string dense;
    for (uint64_t at = 0; at < spec.n_bytes(); at += runs.run_bytes) {
      dense.append(
          reinterpret_cast<const char*>(runs.data) +
              at / runs.run_bytes * runs.stride_bytes,
          runs.run_bytes);
    }
    tensors.append(nb::bytes(dense.data(), dense.size()));
  }
  out["tensors"] = specs;
  out["data"] = tensors;
  return out;
}

} // namespace

void register_checkpoint(nb::module_& m) {
  m.def(
      "checkpoint_schema",
      [](const nb::dict& geometry, const nb::dict& shape) {
        nb::list out;
        auto s = shape_from(shape);
        auto specs = state::schema(geometry_from(geometry), s);
        for (const auto& e : state::checkpoint_layout(specs, s, 0).extents) {
          out.append(bindings::extent_tuple(e));
        }
        return out;
      },
      "geometry"_a,
      "shape"_a);
  m.def(
      "checkpoint_write",
      &write,
      "dir_fd"_a,
      "name"_a,
      "geometry"_a,
      "head"_a,
      "tensors"_a,
      nb::kw_only(),
      "durability"_a = "none",
      "tensor_hashes"_a = false,
      "spare"_a = 0,
      "after"_a = nb::none(),
      "cancel_at"_a = nb::none(),
      "kill_at"_a = -1);
  m.def(
      "checkpoint_read",
      &read,
      "dir_fd"_a,
      "name"_a,
      "geometry"_a = nb::none(),
      "identity"_a = nb::none(),
      "owner"_a = nb::none(),
      nb::kw_only(),
      "max_context"_a = 1 << 21,
      "max_payload"_a = state::kMaxFile,
      "spare"_a = 0,
      "cancelled"_a = false);
  m.def("checkpoint_allocated_bytes", &state::checkpoint_allocated_bytes);
}

} // namespace qwenmtp::testing
