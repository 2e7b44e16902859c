#include "model/ple_table.h"

#include <numeric>

#include "base/error.h"

namespace qwenmtp::model {

namespace {

/** The buffers of the checkpoint; re-made copies leave them out, and then they
 *  follow from the config. */
ple::NgramConfig hash_constants(
    Weights& w,
    const Config& c,
    const std::string& base,
    int rank) {
  ple::NgramConfig n;
  n.vocab = c.vocab_size;
  n.ngram_size = c.ngram_size;
  n.heads_per_ngram = c.heads_per_ngram;
  n.eos = static_cast<int32_t>(c.eos);
  if (w.has(base + "layer_multipliers")) {
    n.multipliers = w.integers(base + "layer_multipliers", c.ngram_size);
    n.sizes = w.integers(base + "ngram_heads_vocab_sizes", c.ngram_heads());
    n.offsets = w.integers(base + "ngram_heads_offsets", c.ngram_heads());
    return n;
  }
  n.multipliers = ple::ngram_multipliers(
      static_cast<uint64_t>(c.ngram_seed),
      c.vocab_size,
      c.ngram_size,
      rank);
  auto heads = ple::ngram_heads(c.ngram_vocab_base, c.ngram_heads(), rank);
  n.sizes = heads.sizes;
  n.offsets = heads.offsets;
  return n;
}

float scalar(Weights& w, const std::string& name) {
  auto value = w.dense(name, w.ref(name).shape, mx::float32);
  if (value.size() != 1) {
    throw ModelFormatError(
        "[model.ple_table] tensor " + name + ": shape " +
        to_string(value.shape()) + ", expected one value");
  }
  return value.item<float>();
}

ple::Plane plane(
    Weights& w,
    const std::string& name,
    const std::string& dtype,
    const mx::Shape& shape) {
  const auto& ref = w.ref(name);
  if (ref.dtype != dtype || ref.shape != shape) {
    throw ModelFormatError(
        "[model.ple_table] tensor " + name + ": " + ref.dtype + " " +
        to_string(ref.shape) + ", expected " + dtype + " " + to_string(shape));
  }
  w.claim(name);
  return {w.path(ref.file), ref.offset};
}

ple::Shard shard(
    Weights& w,
    const std::string& module,
    const ple::RowFormat& format) {
  const auto& shape = w.ref(module + ".weight").shape;
  int rows = shape.empty() ? 0 : shape[0];
  if (format.coding != ple::Coding::kAffine) {
    auto dtype = format.coding == ple::Coding::kF32   ? "F32"
                 : format.coding == ple::Coding::kFp8 ? "F8_E4M3"
                                                      : "BF16";
    return {rows, {plane(w, module + ".weight", dtype, {rows, format.dim})}};
  }
  int groups = format.dim / format.group_size;
  return {
      rows,
      {plane(
           w,
           module + ".weight",
           "U32",
           {rows, format.dim * format.bits / 32}),
       plane(w, module + ".scales", "BF16", {rows, groups}),
       plane(w, module + ".biases", "BF16", {rows, groups})}};
}

} // namespace

NgramTable find_ngram_table(
    Weights& w,
    const Config& c,
    const std::string& module,
    int ple_index) {
  auto base = module + ".ple_embedding.";
  auto hash = hash_constants(w, c, base, ple_index);

  std::vector<std::string> modules;
  if (w.layout() == Layout::pack) {
    modules = {"ngram"};
  } else {
    auto stem = base + "ngram_embedding." +
                (w.layout() == Layout::released ? "shard_" : "shards.");
    while (w.has(stem + std::to_string(modules.size()) + ".weight")) {
      modules.push_back(stem + std::to_string(modules.size()));
    }
    if (modules.empty()) {
      throw ModelFormatError(
          "[model.ple_table] tensor " + stem + "0.weight: missing");
    }
  }

  ple::TableSpec spec;
  spec.format.dim = c.ple_dim / c.ngram_heads();
  if (w.has(modules[0] + ".scales")) {
    auto q = w.quant(modules[0], spec.format.dim);
    spec.format.coding = ple::Coding::kAffine;
    spec.format.bits = q.bits;
    spec.format.group_size = q.group_size;
  } else if (auto dtype = w.ref(modules[0] + ".weight").dtype; dtype == "F32") {
    spec.format.coding = ple::Coding::kF32;
  } else if (dtype == "F8_E4M3") {
    spec.format.coding = ple::Coding::kFp8;
    spec.format.fp8_scale = scalar(
        w,
        w.layout() == Layout::pack ? "ngram.weight_scale"
                                   : base + "ngram_embedding.weight_scale");
  }
  int64_t rows = 0;
  for (const auto& name : modules) {
    spec.shards.push_back(shard(w, name, spec.format));
    rows += spec.shards.back().rows;
  }
  auto used = std::accumulate(hash.sizes.begin(), hash.sizes.end(), int64_t{0});
  auto divisor = c.ngram_vocab_divisor;
  auto padded = (used + divisor - 1) / divisor * divisor;
  if (rows != padded) {
    throw ModelFormatError(
        "[model.ple_table] n-gram table of " + module + ": " +
        std::to_string(rows) + " rows, expected " + std::to_string(padded));
  }
  return {std::move(hash), std::move(spec)};
}

} // namespace qwenmtp::model
