/** Checkpoint headers as Python values, for _core and for the test extension.
 */
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "state/checkpoint.h"

namespace qwenmtp::bindings {

inline nanobind::bytes to_bytes(std::span<const uint8_t> data) {
  return nanobind::bytes(data.data(), data.size());
}

template <typename A>
A from_bytes(const nanobind::bytes& data) {
  A out;
  if (data.size() != out.size()) {
    throw InvalidArgument(
        "[checkpoint] " + std::to_string(data.size()) + " bytes, expected " +
        std::to_string(out.size()));
  }
  std::copy_n(
      reinterpret_cast<const uint8_t*>(data.c_str()),
      out.size(),
      out.begin());
  return out;
}

inline std::optional<state::Digest> digest_or_none(
    const std::optional<nanobind::bytes>& data) {
  return data ? std::optional(from_bytes<state::Digest>(*data)) : std::nullopt;
}

inline const char* mode_name(state::Mode mode) {
  return mode == state::Mode::mtp ? "mtp" : "ar";
}

inline const char* finish_name(state::Finish finish) {
  constexpr const char* kNames[] = {"stop", "length", "tool_calls"};
  return kNames[static_cast<size_t>(finish)];
}

inline const char* dtype_name(state::Dtype dtype) {
  switch (dtype) {
    case state::Dtype::i64:
      return "int64";
    case state::Dtype::f16:
      return "float16";
    case state::Dtype::bf16:
      return "bfloat16";
    case state::Dtype::f32:
      return "float32";
  }
  return "";
}

inline const char* role_name(state::Role role) {
  constexpr const char* kNames[] = {
      "gdn_conv",
      "gdn_ssm",
      "ple_conv",
      "ple_ids",
      "keys",
      "values",
      "raw",
      "pooled",
      "logits",
      "hidden"};
  return kNames[static_cast<size_t>(role) - 1];
}

inline const char* group_name(state::Group group) {
  constexpr const char* kNames[] = {"trunk", "mtp", "final", "boundary"};
  return kNames[static_cast<size_t>(group) - 1];
}

/** The prologue's fields by the names of docs/checkpoint-format.md. */
inline nanobind::dict prologue_dict(const state::Prologue& p) {
  nanobind::dict d;
  d["mode"] = mode_name(p.head.shape.mode);
  d["n_tokens"] = p.head.shape.n_tokens;
  d["history_len"] = p.head.shape.history_len;
  d["position_base"] = p.head.position_base;
  d["finish"] = finish_name(p.head.finish);
  d["created_ns"] = p.head.created_ns;
  d["identity"] = to_bytes(p.head.identity);
  d["owner"] = to_bytes(p.head.owner);
  d["writer_id"] = to_bytes(p.head.writer_id);
  d["n_tensors"] = p.n_tensors;
  d["n_boundaries"] = p.n_boundaries;
  d["header_bytes"] = p.header_bytes;
  d["file_bytes"] = p.file_bytes;
  return d;
}

/** group, role, layer, boundary (or None), dtype, shape, offset, n_bytes. */
inline nanobind::tuple extent_tuple(const state::Extent& e) {
  nanobind::list shape;
  for (size_t i = 0; i < e.spec.rank; ++i) {
    shape.append(e.spec.dims[i]);
  }
  nanobind::object boundary = nanobind::none();
  if (e.spec.boundary != state::kNoBoundary) {
    boundary = nanobind::int_(e.spec.boundary);
  }
  return nanobind::make_tuple(
      group_name(e.spec.group),
      role_name(e.spec.role),
      e.spec.layer,
      boundary,
      dtype_name(e.spec.dtype),
      nanobind::tuple(shape),
      e.offset,
      e.n_bytes);
}

} // namespace qwenmtp::bindings
