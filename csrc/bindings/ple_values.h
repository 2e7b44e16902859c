/** Counters of n-gram rows as plain Python values. */
#pragma once

#include <nanobind/nanobind.h>

#include "ple/stager_stats.h"

namespace qwenmtp::bindings {

/** Every counter under its own name; windows and chunks are dicts. */
nanobind::dict to_dict(const ple::StagerStats& stats);

} // namespace qwenmtp::bindings
