/** One register function per room; each is defined in bindings/<room>.cpp. */
#pragma once

#include <nanobind/nanobind.h>

namespace qwenmtp::bindings {

void register_decode(nanobind::module_& m);
void register_model(nanobind::module_& m);
void register_checkpoint(nanobind::module_& m);
void register_model(nanobind::module_& m);
void register_ple(nanobind::module_& m);

} // namespace qwenmtp::bindings
