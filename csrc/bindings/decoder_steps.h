/** The methods that every bound decoder has, whatever network is under it. D
 * has a decoder(), and a finish() where it works on a state. */
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/decode_values.h"

namespace qwenmtp::bindings {

namespace nb = nanobind;

/** Runs without the interpreter lock. */
template <typename Work>
auto unlocked(Work work) {
  const nb::gil_scoped_release release;
  return work();
}

/** The part of a decoder that does not depend on its network. */
template <typename D>
void register_steps(nb::class_<D>& c) {
  c.def(
       "prefill",
       [](D& d) { return unlocked([&] { return d.decoder().prefill(); }); },
       "One chunk; returns the tokens now held.")
      .def(
          "step",
          [](D& d) {
            return to_dict(unlocked([&] { return d.decoder().step(); }));
          },
          "One round: {ids, logprobs, drafted, accepted}.")
      .def(
          "advance",
          [](D& d) {
            return to_dict(unlocked([&] { return d.decoder().advance(); }));
          },
          "Up to the next batch of a round.")
      .def(
          "cancel",
          [](D& d) { d.decoder().cancel(); },
          "From any thread; takes effect at the next phase.")
      .def_prop_ro(
          "prefilled",
          [](D& d) { return d.decoder().prefilled(); },
          "Whether the whole prompt is in.")
      .def_prop_ro(
          "done",
          [](D& d) { return d.decoder().done(); },
          "Whether no step is left.")
      .def_prop_ro(
          "tokens",
          [](D& d) { return d.decoder().tokens(); },
          "Every emitted id, stop tokens included.")
      .def_prop_ro(
          "finish_reason",
          [](D& d) { return to_name(d.decoder().finish_reason()); },
          "stop, length, cancelled, deadline, or none while running.")
      .def_prop_ro(
          "stop_origin",
          [](D& d) { return to_name(d.decoder().stop_origin()); },
          "Where a stop came from.")
      .def_prop_ro(
          "draw_trace",
          [](D& d) { return d.decoder().draws().trace(); },
          "One letter per draw: c a token, u an acceptance.")
      .def_prop_ro(
          "statistics",
          [](D& d) { return to_dict(d.decoder().statistics()); },
          "Counters and seconds (decode.md 9).");
}

template <typename D>
void register_state(nb::class_<D>& c) {
  c.def(
       "finish",
       [](D& d) { return unlocked([&] { return d.finish(); }); },
       "Commit the state. Returns why it was put back instead, or ''.")
      .def(
          "abandon",
          [](D& d) { unlocked([&] { d.decoder().abandon(); }); },
          "Put the state back to before the request.");
}

} // namespace qwenmtp::bindings
