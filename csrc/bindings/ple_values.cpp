#include "bindings/ple_values.h"

namespace nb = nanobind;

namespace qwenmtp::bindings {
namespace {

nb::dict to_dict(const ple::SpanStats& span) {
  nb::dict d;
  d["calls"] = span.calls;
  d["tokens"] = span.tokens;
  d["stage_ns"] = span.stage_ns;
  d["stall_ns"] = span.stall_ns;
  return d;
}

} // namespace

nb::dict to_dict(const ple::StagerStats& stats) {
  nb::dict d;
  d["rows_requested"] = stats.rows_requested;
  d["rows_distinct"] = stats.rows_distinct;
  d["rows_hot"] = stats.rows_hot;
  d["rows_ahead"] = stats.rows_ahead;
  d["rows_cold"] = stats.rows_cold;
  d["read_calls"] = stats.read_calls;
  d["read_bytes"] = stats.read_bytes;
  d["requests"] = stats.requests;
  d["requests_refused"] = stats.requests_refused;
  d["rows_dropped"] = stats.rows_dropped;
  d["failures"] = stats.failures;
  d["windows"] = to_dict(stats.windows);
  d["chunks"] = to_dict(stats.chunks);
  return d;
}

} // namespace qwenmtp::bindings
