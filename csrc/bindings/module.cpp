/** The module _core: one register function per room, and the translation of
 *  exceptions. No logic lives here. */
#include "bindings/bindings.h"
#include "bindings/errors.h"

#include <mlx/version.h>
#include <nanobind/stl/string.h>

#include "base/trace.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "The engine of qwenmtp. Private: import qwenmtp instead.";
  qwenmtp::bindings::translate_errors();
  m.attr("mlx_version") = mlx::core::version();
  m.def(
      "open_trace",
      &qwenmtp::trace::open,
      nb::arg("path"),
      "Starts a Perfetto trace of this process, or joins the running one.");
  m.def("close_trace", &qwenmtp::trace::close, "Undoes one open_trace.");
  qwenmtp::bindings::register_model(m);
  qwenmtp::bindings::register_ple(m);
  qwenmtp::bindings::register_decode(m);
  qwenmtp::bindings::register_checkpoint(m);
}
