/** Options in and results out as plain Python values; shared by the product's
 *  decoder and the scripted one of the tests. */
#pragma once

#include <nanobind/nanobind.h>

#include "decode/decoder.h"

namespace qwenmtp::bindings {

/** One entry per field of decode::Options under its own name; target and draft
 *  are tuples (temperature, top_p, top_k, presence, frequency), seed an int of
 *  any size, deadline seconds from now. Unknown names raise InvalidArgument. */
decode::Options to_options(const nanobind::dict& values);

/** {"ids", "logprobs", "drafted", "accepted"} */
nanobind::dict to_dict(const decode::Released& released);

nanobind::dict to_dict(const decode::Statistics& statistics);

const char* to_name(decode::Finish finish);
const char* to_name(decode::StopOrigin origin);

/** A non-negative Python integer as 32-bit words, least significant first. */
std::vector<uint32_t> seed_words(const nanobind::int_& seed);

} // namespace qwenmtp::bindings
