/** A table in planar arrays, as checkpoints have it. */
#pragma once

#include "ple/table.h"

namespace qwenmtp::ple {

/** The shards of `spec`, whatever its row file. See Table::open. */
Table open_planar(const TableSpec& spec);

} // namespace qwenmtp::ple
