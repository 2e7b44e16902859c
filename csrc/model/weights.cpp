#include "model/weights.h"

#include <algorithm>

#include "base/error.h"

namespace qwenmtp::model {

namespace {

const std::map<std::string, mx::Dtype>& dtypes() {
  static const std::map<std::string, mx::Dtype> table = {
      {"F32", mx::float32},
      {"F16", mx::float16},
      {"BF16", mx::bfloat16},
      {"I64", mx::int64},
      {"I32", mx::int32},
      {"U32", mx::uint32},
      {"U8", mx::uint8}};
  return table;
}

/** Bytes of one element; 0 for dtypes that no module here can use. */
uint64_t element_bytes(const std::string& dtype) {
  if (auto it = dtypes().find(dtype); it != dtypes().end()) {
    return mx::size_of(it->second);
  }
  return dtype == "F8_E4M3" ? 1 : 0;
}

uint64_t elements(const mx::Shape& shape) {
  uint64_t n = 1;
  for (auto d : shape) {
    n *= static_cast<uint64_t>(d);
  }
  return n;
}

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw ModelFormatError("[model.weights] tensor " + name + ": " + what);
}

} // namespace

std::string to_string(const mx::Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); i++) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

namespace {

mx::array valueless(const mx::Shape& shape, mx::Dtype dtype) {
  return mx::array(shape, dtype, nullptr, {});
}

} // namespace

mx::array Linear::operator()(const mx::array& x) const {
  return kernels::rows(x, {matrix()})[0];
}

Linear Linear::top(int n) const {
  auto part = [n](const mx::array& a) {
    return mx::slice(a, {0, 0}, {n, a.shape(1)});
  };
  Linear out{part(weight), {}, {}, quant};
  if (scales) {
    out.scales = part(*scales);
    out.biases = part(*biases);
  }
  return out;
}

size_t Linear::nbytes() const {
  return weight.nbytes() + (scales ? scales->nbytes() : 0) +
         (biases ? biases->nbytes() : 0);
}

Weights::Weights(
    Layout layout,
    std::vector<std::string> files,
    std::map<std::string, TensorRef> tensors,
    std::map<std::string, Quant> quant,
    mx::Dtype dtype,
    std::atomic<uint64_t>* bytes_read)
    : layout_(layout),
      paths_(std::move(files)),
      tensors_(std::move(tensors)),
      quant_(std::move(quant)),
      dtype_(dtype),
      bytes_read_(bytes_read) {
  for (const auto& path : paths_) {
    files_.emplace_back(path);
  }
  for (const auto& [name, ref] : tensors_) {
    uint64_t size = files_.at(ref.file).size();
    uint64_t bytes = elements(ref.shape) * element_bytes(ref.dtype);
    if (element_bytes(ref.dtype) == 0) {
      fail(
          name,
          "dtype " + ref.dtype +
              ", expected one of safetensors' float, "
              "I64, U32 or F8_E4M3 types");
    }
    if (ref.offset > size || bytes > size - ref.offset) {
      fail(
          name,
          "ends at byte " + std::to_string(ref.offset + bytes) + " of " +
              paths_[ref.file] + ", which has " + std::to_string(size));
    }
  }
}

Weights Weights::without_values(
    std::vector<std::string> files,
    std::map<std::string, TensorRef> tensors,
    Quant width,
    mx::Dtype dtype) {
  Weights out(
      Layout::pack,
      std::move(files),
      std::move(tensors),
      {{"", width}},
      dtype);
  out.has_values_ = false;
  return out;
}

mx::array Weights::settled(const mx::array& a) const {
  if (!has_values_) {
    return valueless(a.shape(), a.dtype());
  }
  mx::eval(a);
  return a;
}

const TensorRef& Weights::ref(const std::string& name) const {
  auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    fail(name, "missing");
  }
  return it->second;
}

const TensorRef& Weights::expect(
    const std::string& name,
    const mx::Shape& shape,
    std::initializer_list<const char*> dtypes) {
  const auto& found = ref(name);
  if (found.shape != shape) {
    fail(
        name,
        "shape " + to_string(found.shape) + ", expected " + to_string(shape));
  }
  if (std::none_of(dtypes.begin(), dtypes.end(), [&](const char* d) {
        return found.dtype == d;
      })) {
    std::string wanted;
    for (const char* d : dtypes) {
      wanted += (wanted.empty() ? "" : " or ") + std::string(d);
    }
    fail(name, "dtype " + found.dtype + ", expected " + wanted);
  }
  return found;
}

mx::array Weights::read(const std::string& name, const TensorRef& ref) {
  claim(name);
  auto dtype = dtypes().at(ref.dtype);
  auto bytes = elements(ref.shape) * mx::size_of(dtype);
  auto out = mx::array(mx::allocator::malloc(bytes), ref.shape, dtype);
  files_[ref.file].pread_exact(ref.offset, {out.data<std::byte>(), bytes});
  if (bytes_read_) {
    *bytes_read_ += bytes;
  }
  return out;
}

mx::array Weights::dense(
    const std::string& name,
    const mx::Shape& shape,
    mx::Dtype dtype) {
  if (!has_values_) {
    return valueless(shape, dtype);
  }
  const auto& found = expect(name, shape, {"BF16", "F32", "F16"});
  auto a = read(name, found);
  bytes_by_kind_[found.dtype] += a.nbytes();
  if (a.dtype() != dtype) {
    return settled(mx::astype(a, dtype));
  }
  return a;
}

mx::array Weights::norm(const std::string& name, int size, bool one_centred) {
  auto w = dense(name, {size}, dtype_);
  return one_centred ? w : settled(mx::add(w, mx::array(1.0f, dtype_)));
}

std::vector<int64_t> Weights::integers(const std::string& name, int size) {
  auto a = read(name, expect(name, {size}, {"I64"}));
  return {a.data<int64_t>(), a.data<int64_t>() + size};
}

Quant Weights::quant(const std::string& module, int columns) const {
  const auto& codes = ref(module + ".weight").shape;
  const auto& scales = ref(module + ".scales").shape;
  Quant q;
  auto rule = quant_.find(module);
  if (rule == quant_.end()) {
    rule = quant_.find("");
  }
  if (module.starts_with("mtp.") || rule == quant_.end()) {
    // The MTP file carries no map: widths follow from the shapes.
    if (codes.empty() || scales.empty() || scales.back() <= 0) {
      fail(module + ".scales", "shape " + to_string(scales));
    }
    q = {
        static_cast<int>(int64_t{32} * codes.back() / columns),
        columns / scales.back()};
  } else {
    q = rule->second;
  }
  bool known_bits = q.bits >= 2 && q.bits <= 8 && q.bits != 7;
  bool known_group =
      q.group_size == 32 || q.group_size == 64 || q.group_size == 128;
  if (!known_bits || !known_group || columns % q.group_size != 0) {
    fail(
        module + ".weight",
        std::to_string(q.bits) + " bits in groups of " +
            std::to_string(q.group_size) + " for " + std::to_string(columns) +
            " columns, expected 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 "
            "or 128 that divide the columns");
  }
  return q;
}

Linear Weights::linear(const std::string& module, const mx::Shape& shape) {
  if (!has_values_) {
    claim(module + ".weight");
    const auto q = quant_.at("");
    auto codes = shape, groups = shape;
    codes.back() = shape.back() * q.bits / 32;
    groups.back() = shape.back() / q.group_size;
    auto make = valueless;
    if (module.ends_with("embed_tokens")) { // the host reads its rows
      make = [](const mx::Shape& s, mx::Dtype d) {
        auto a = mx::zeros(s, d);
        mx::eval(a);
        return a;
      };
    }
    const auto scales = make(groups, dtype_);
    return {make(codes, mx::uint32), scales, scales, q};
  }
  const auto& weight = ref(module + ".weight");
  if (!has(module + ".scales")) {
    if (weight.dtype == "U32") {
      fail(module + ".scales", "missing for packed codes");
    }
    return {dense(module + ".weight", shape, kept(weight.dtype)), {}, {}, {}};
  }
  auto q = quant(module, shape.back());
  auto codes = shape;
  codes.back() = static_cast<int>(int64_t{shape.back()} * q.bits / 32);
  auto groups = shape;
  groups.back() = shape.back() / q.group_size;
  auto packed =
      read(module + ".weight", expect(module + ".weight", codes, {"U32"}));
  bytes_by_kind_[std::to_string(q.bits) + "-bit"] += packed.nbytes();
  auto type = ref(module + ".scales").dtype == "BF16" ? mx::bfloat16 : dtype_;
  auto scales = dense(module + ".scales", groups, type);
  return {packed, scales, dense(module + ".biases", groups, type), q};
}

namespace {

/** A matrix with its values spelled out: float32, since no 16-bit type holds
 *  every scale * code + bias. */
Linear spelled_out(const Linear& m) {
  if (!m.scales) {
    return {mx::astype(m.weight, mx::float32), {}, {}, {}};
  }
  return {
      mx::dequantize(
          m.weight,
          mx::astype(*m.scales, mx::float32),
          mx::astype(*m.biases, mx::float32),
          m.quant.group_size,
          m.quant.bits),
      {},
      {},
      {}};
}

} // namespace

Linear Weights::stacked(
    const std::vector<std::pair<std::string, int>>& modules,
    int in,
    int zeros) {
  std::vector<Linear> all;
  bool one_form = true;
  for (const auto& [module, out] : modules) {
    all.push_back(linear(module, {out, in}));
    one_form = one_form && all.back().quant.bits == all[0].quant.bits &&
               all.back().quant.group_size == all[0].quant.group_size;
  }
  if (!one_form) {
    for (auto& m : all) {
      m = spelled_out(m);
    }
  }
  auto joined = [&](auto part) {
    std::vector<mx::array> parts;
    for (const auto& m : all) {
      parts.push_back(part(m));
    }
    if (zeros > 0) {
      parts.push_back(mx::zeros({zeros, parts[0].shape(1)}, parts[0].dtype()));
    }
    return settled(mx::concatenate(parts, 0));
  };
  Linear out{joined([](const Linear& m) { return m.weight; }), {}, {}, {}};
  if (one_form && all[0].scales) {
    out.scales = joined([](const Linear& m) { return *m.scales; });
    out.biases = joined([](const Linear& m) { return *m.biases; });
    out.quant = all[0].quant;
  }
  return out;
}

Linear Weights::packed(const std::string& name, const mx::Shape& shape) {
  if (ref(name).shape != shape) { // the transposed variant, [E, in, out]
    auto stored = shape;
    std::swap(stored[1], stored[2]);
    if (ref(name).shape == stored) {
      auto a = mx::swapaxes(dense(name, stored, kept(ref(name).dtype)), 1, 2);
      return {settled(mx::contiguous(a)), {}, {}, {}};
    }
  }
  return {dense(name, shape, kept(ref(name).dtype)), {}, {}, {}};
}

mx::Dtype Weights::kept(const std::string& stored) const {
  if (dtype_ != mx::float32) {
    return dtype_;
  }
  return stored == "BF16"  ? mx::bfloat16
         : stored == "F16" ? mx::float16
                           : mx::float32;
}

void Weights::claim(const std::string& name) {
  used_.insert(name);
}

void Weights::require_all_used() const {
  for (const auto& [name, ref] : tensors_) {
    bool vision = name.find("visual.") != std::string::npos ||
                  name.starts_with("vision_tower.");
    if (!used_.contains(name) && !vision) {
      fail(name, "unexpected in this layout");
    }
  }
}

} // namespace qwenmtp::model
