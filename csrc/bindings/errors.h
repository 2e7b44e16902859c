/** Errors of the core as exceptions of qwenmtp.errors. */
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/error.h"

namespace qwenmtp::bindings {

/** Call once in every extension module. */
inline void translate_errors() {
  namespace nb = nanobind;
  using namespace nb::literals;
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    auto raise = [](const nb::object& error) {
      PyErr_SetObject(error.type().ptr(), error.ptr());
    };
    try {
      std::rethrow_exception(p);
    } catch (const CheckpointError& e) {
      nb::dict details;
      details["reason"] = e.reason;
      raise(nb::module_::import_("qwenmtp.errors")
                .attr("CheckpointError")(
                    e.what(),
                    e.outcome,
                    "details"_a = details));
    } catch (const Error& e) {
      raise(nb::module_::import_("qwenmtp.errors")
                .attr("from_code")(e.code(), e.what()));
    }
  });
}

} // namespace qwenmtp::bindings
