#include "kernels/spec.h"

#include <cctype>
#include <sstream>

#include "base/error.h"
#include "kernels/text.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

using Sizes = std::map<std::string, int>;

bool is_name(const std::string& word) {
  for (char c : word) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') {
      return false;
    }
  }
  return !word.empty() && !std::isdigit(static_cast<unsigned char>(word[0]));
}

/** Integer value of + - * / and parentheses over sizes; / rounds up. */
class Expression {
 public:
  Expression(const std::string& text, const Sizes& sizes)
      : text_(text), sizes_(sizes) {
  }

  int value() {
    int v = sum();
    if (peek() != 0) {
      fail("goes on after a value");
    }
    return v;
  }

 private:
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') {
      at_++;
    }
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  [[noreturn]] void fail(const std::string& why) {
    throw InternalError("[kernels.spec] \"" + text_ + "\" " + why);
  }

  int sum() {
    int v = product();
    for (char op = peek(); op == '+' || op == '-'; op = peek()) {
      at_++;
      int right = product();
      v = op == '+' ? v + right : v - right;
    }
    return v;
  }

  int product() {
    int v = atom();
    for (char op = peek(); op == '*' || op == '/'; op = peek()) {
      at_++;
      int right = atom();
      v = op == '*' ? v * right : (v + right - 1) / right;
    }
    return v;
  }

  int atom() {
    if (peek() == '(') {
      at_++;
      int v = sum();
      if (peek() != ')') {
        fail("lacks )");
      }
      at_++;
      return v;
    }
    std::string word;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) ||
            text_[at_] == '_')) {
      word += text_[at_++];
    }
    if (is_name(word)) {
      auto found = sizes_.find(word);
      if (found == sizes_.end()) {
        fail("has the unbound size " + word);
      }
      return found->second;
    }
    if (word.empty()) {
      fail("lacks a value");
    }
    return std::stoi(word);
  }

  const std::string& text_;
  const Sizes& sizes_;
  size_t at_ = 0;
};

std::string trimmed(const std::string& s) {
  size_t first = s.find_first_not_of(' ');
  size_t last = s.find_last_not_of(' ');
  return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

std::vector<std::string> list(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    out.push_back(trimmed(part));
  }
  return out;
}

KernelArgument argument(const std::string& text) {
  std::istringstream in(text);
  KernelArgument a;
  std::string dims;
  in >> a.name >> a.dtype;
  std::getline(in, dims);
  a.dims = list(dims);
  return a;
}

void add_line(
    KernelSpec& spec,
    const std::string& key,
    const std::string& value) {
  if (key == "template") {
    std::istringstream in(value);
    for (std::string word; in >> word;) {
      spec.parameters.push_back(word.substr(0, word.find(':')));
    }
  } else if (key == "in") {
    spec.inputs.push_back(argument(value));
  } else if (key == "out") {
    spec.outputs.push_back(argument(value));
  } else if (key == "grid") {
    spec.grid = list(value);
  } else if (key == "group") {
    spec.group = list(value);
  } else if (key == "shared") {
    spec.source += "TGMEM " + value + ";\n";
  } else if (key == "call") {
    bool follows = !spec.source.empty() && spec.source.back() != '\n';
    spec.source += (follows ? "\n" : "") + value;
  } else {
    throw InternalError("[kernels.spec] //@" + key + " in " + spec.family);
  }
}

std::map<std::string, KernelSpec> read_specs() {
  std::map<std::string, KernelSpec> specs;
  for (const auto& [file, text] : kernel_text()) {
    KernelSpec* spec = nullptr;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      if (line.rfind("//@", 0) != 0) {
        continue;
      }
      auto space = line.find(' ');
      auto key = line.substr(3, space - 3);
      auto value = trimmed(line.substr(space));
      if (key == "kernel") {
        spec = &specs[value];
        spec->name = value;
        spec->family = file;
      } else {
        add_line(*spec, key, value);
      }
    }
  }
  return specs;
}

mx::Dtype dtype_of(
    const KernelSpec& spec,
    const KernelArgument& a,
    const TemplateArgs& args) {
  static const std::map<std::string, mx::Dtype> words = {
      {"float32", mx::float32},
      {"float16", mx::float16},
      {"bfloat16", mx::bfloat16},
      {"int32", mx::int32},
      {"uint32", mx::uint32},
      {"uint8", mx::uint8}};
  for (const auto& [name, value] : args) {
    if (name == a.dtype) {
      return std::get<mx::Dtype>(value);
    }
  }
  auto found = words.find(a.dtype);
  if (found == words.end()) {
    throw InternalError(
        "[kernels.spec] dtype " + a.dtype + " of " + spec.name + "." + a.name);
  }
  return found->second;
}

Sizes template_sizes(const KernelSpec& spec, const TemplateArgs& args) {
  Sizes sizes;
  bool same = args.size() == spec.parameters.size();
  for (size_t i = 0; same && i < args.size(); i++) {
    same = args[i].first == spec.parameters[i];
    if (auto* v = std::get_if<int>(&args[i].second)) {
      sizes[args[i].first] = *v;
    } else if (auto* flag = std::get_if<bool>(&args[i].second)) {
      sizes[args[i].first] = *flag;
    }
  }
  if (!same) {
    throw InternalError("[kernels.plan] template arguments of " + spec.name);
  }
  return sizes;
}

void bind(
    const KernelSpec& spec,
    const KernelArgument& a,
    const mx::array& x,
    Sizes& sizes) {
  bool same = x.ndim() == a.dims.size();
  for (size_t i = 0; same && i < a.dims.size(); i++) {
    int size = x.shape(static_cast<int>(i));
    if (is_name(a.dims[i])) {
      sizes.emplace(a.dims[i], size);
    }
    same = Expression(a.dims[i], sizes).value() == size;
  }
  if (!same) {
    throw InternalError(
        "[kernels.plan] shape of " + a.name + ", expected that of " +
        spec.name);
  }
}

} // namespace

const KernelSpec& kernel_spec(const std::string& name) {
  static const auto specs = read_specs();
  auto found = specs.find(name);
  if (found == specs.end()) {
    throw InternalError("[kernels.spec] no kernel " + name + " in metal/");
  }
  return found->second;
}

std::string metal_header(const KernelSpec& spec) {
  std::string header;
  for (const auto& file :
       {std::string("dialect.h"),
        std::string("numerics.h"),
        std::string("select.h"),
        spec.family}) {
    header += kernel_text().at(file);
  }
  return header;
}

std::string cuda_header(const KernelSpec& spec) {
  return kernel_text().at("cuda.h") + "\nnamespace mlx::core::cu {\n" +
         metal_header(spec) + "\n}  // namespace mlx::core::cu\n";
}

LaunchPlan plan(
    const KernelSpec& spec,
    const TemplateArgs& args,
    const std::vector<mx::array>& inputs) {
  auto sizes = template_sizes(spec, args);
  if (inputs.size() != spec.inputs.size()) {
    throw InternalError("[kernels.plan] number of inputs of " + spec.name);
  }
  for (size_t i = 0; i < inputs.size(); i++) {
    bind(spec, spec.inputs[i], inputs[i], sizes);
    if (inputs[i].dtype() != dtype_of(spec, spec.inputs[i], args)) {
      throw InternalError(
          "[kernels.plan] dtype of " + spec.inputs[i].name +
          ", expected that of " + spec.name);
    }
  }
  LaunchPlan out;
  for (const auto& a : spec.outputs) {
    mx::Shape shape;
    for (const auto& dim : a.dims) {
      shape.push_back(Expression(dim, sizes).value());
    }
    out.shapes.push_back(shape);
    out.dtypes.push_back(dtype_of(spec, a, args));
  }
  for (int i = 0; i < 3; i++) {
    int group = Expression(spec.group[i], sizes).value();
    int threads = Expression(spec.grid[i], sizes).value();
    out.group[i] = group;
    out.grid[i] = (threads + group - 1) / group * group;
  }
  return out;
}

} // namespace qwenmtp::kernels
