/** The module _core: one register function per room, and the translation of
 *  exceptions. No logic lives here. */
#include "bindings/bindings.h"

#include <mlx/version.h>
#include <nanobind/stl/string.h>

#include "base/error.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "The engine of qwenmtp. Private: import qwenmtp instead.";
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const qwenmtp::Error& e) {
      nb::object error = nb::module_::import_("qwenmtp.errors")
                             .attr("from_code")(e.code(), e.what());
      PyErr_SetObject(error.type().ptr(), error.ptr());
    }
  });
  m.attr("mlx_version") = mlx::core::version();
  qwenmtp::bindings::register_model(m);
  qwenmtp::bindings::register_ple(m);
  qwenmtp::bindings::register_decode(m);
}
