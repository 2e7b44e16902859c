/** The test-only extension: scripted trunks, fault hooks, traces and views of
 *  single rooms. No wheel carries it. */
#include "bindings/errors.h"
#include "testing.h"

namespace nb = nanobind;

NB_MODULE(_qwenmtp_testing, m) {
  m.doc() = "Test hooks of qwenmtp; absent from wheels.";
  nb::module_::import_("qwenmtp._core"); // its types and errors serve here too
  qwenmtp::bindings::translate_errors();
  qwenmtp::testing::register_base(m);
  qwenmtp::testing::register_checkpoint(m);
  qwenmtp::testing::register_model(m);
  qwenmtp::testing::register_kernels(m);
  qwenmtp::testing::register_ple(m);
  qwenmtp::testing::register_pool(m);
  qwenmtp::testing::register_spec(m);
  register_decode(m);
  register_faulty(m);
  register_keyed(m);
  register_sampling(m);
}
