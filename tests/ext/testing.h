/** One register function per room under test, in tests/ext/<room>.cpp. */
#pragma once

#include <nanobind/nanobind.h>

namespace qwenmtp::testing {

void register_base(nanobind::module_& m);
void register_checkpoint(nanobind::module_& m);
void register_kernels(nanobind::module_& m);
void register_model(nanobind::module_& m);
void register_ple(nanobind::module_& m);
void register_pool(nanobind::module_& m);
void register_spec(nanobind::module_& m);

} // namespace qwenmtp::testing
void register_decode(nanobind::module_& m);
void register_faulty(nanobind::module_& m);
void register_keyed(nanobind::module_& m);
void register_sampling(nanobind::module_& m);
