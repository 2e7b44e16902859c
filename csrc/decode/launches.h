/** Launches that an accelerator issues for the steps of the decode loops,
 *  counted in their graphs. */
#pragma once

#include <map>
#include <string>

#include "model/model.h"

namespace qwenmtp::decode {

/** Launches by node name. */
using Launches = std::map<std::string, int64_t>;

/** By step: "ar", a token's forward; "verify", a window of `depth` + 1 rows;
 *  "draft", one step of the head; "round", `depth` drafts, their verify and
 *  its commit. Of each the costliest, by how full the open block of keys is
 *  and how many drafts a round keeps. The graphs are an accelerator's, built on
 *  whatever machine and never evaluated: `model` needs no values. Nothing else
 *  may build graphs meanwhile. Throws InternalError for an operator without a
 *  rule. */
std::map<std::string, Launches> launches(const model::Model& model, int depth);

} // namespace qwenmtp::decode
