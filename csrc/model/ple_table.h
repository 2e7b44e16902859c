/** Finds a PLE layer's hash constants and table rows in a checkpoint of any
 *  layout. Opens files; reads only the three small integer buffers. */
#pragma once

#include <memory>
#include <string>

#include "model/config.h"
#include "model/weights.h"
#include "ple/open.h"

namespace qwenmtp::model {

/** One PLE layer's hash and where its rows lie. */
struct NgramTable {
  ple::NgramConfig hash;
  ple::TableSpec spec;
};

/** `module` names the layer's "...ple"; `ple_index` is its rank among the PLE
 *  layers. Claims the tensors. Throws ModelFormatError. */
NgramTable find_ngram_table(
    Weights& weights,
    const Config& config,
    const std::string& module,
    int ple_index);

} // namespace qwenmtp::model
