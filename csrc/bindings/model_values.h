/** Parsed headers as Python has them, for the model; shared by the product's
 *  loader and the tests' faulty one. */
#pragma once

#include <nanobind/nanobind.h>

#include "model/model.h"

namespace qwenmtp::bindings {

/** name, dtype, shape, index into the files, byte offset */
using TensorRow =
    std::tuple<std::string, std::string, std::vector<int64_t>, int, uint64_t>;
/** module path -> bits, group size */
using Widths = std::map<std::string, std::pair<int, int>>;

/** Throws ModelFormatError for a number outside 32 bits. */
model::Config to_config(const nanobind::dict& geometry);

/** See model::Weights. */
model::Weights to_weights(
    const std::string& layout,
    std::vector<std::string> files,
    const std::vector<TensorRow>& tensors,
    const Widths& quant,
    bool float32,
    std::atomic<uint64_t>* bytes_read = nullptr);

/** See model::Weights::without_values; bfloat16. */
model::Weights to_weights_without_values(
    std::vector<std::string> files,
    const std::vector<TensorRow>& tensors,
    std::pair<int, int> width);

} // namespace qwenmtp::bindings
