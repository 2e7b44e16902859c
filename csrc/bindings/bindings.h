/** One register function per room; each is defined in bindings/<room>.cpp. */
#pragma once

#include <nanobind/nanobind.h>

namespace qwenmtp::ple {
class Stager;
}

namespace qwenmtp::bindings {

void register_decode(nanobind::module_& m);
void register_model(nanobind::module_& m);
void register_checkpoint(nanobind::module_& m);
void register_model(nanobind::module_& m);
void register_ple(nanobind::module_& m);

/** Counters of an n-gram stager, JSON-ready. */
nanobind::dict stager_stats(const ple::Stager& stager);

} // namespace qwenmtp::bindings
