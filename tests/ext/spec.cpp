/** What csrc/kernels/spec.cpp reads from the embedded kernel text. */
#include <variant>

#include <mlx/ops.h>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "base/error.h"
#include "kernels/kernel.h"
#include "testing.h"

namespace nb = nanobind;
using namespace nb::literals;
namespace mx = mlx::core;

namespace qwenmtp::testing {

namespace {

using Value = std::variant<bool, int, std::string>;
using Arguments = std::vector<std::pair<std::string, Value>>;
using Inputs = std::vector<std::pair<std::vector<int>, std::string>>;

const std::vector<std::pair<std::string, mx::Dtype>> kWords = {
    {"float32", mx::float32},
    {"float16", mx::float16},
    {"bfloat16", mx::bfloat16},
    {"int32", mx::int32},
    {"uint32", mx::uint32},
    {"uint8", mx::uint8}};

mx::Dtype dtype(const std::string& word) {
  for (const auto& [name, d] : kWords) {
    if (word == name) {
      return d;
    }
  }
  throw InvalidArgument("[testing.spec] dtype " + word);
}

std::string word_of(mx::Dtype dtype) {
  for (const auto& [name, d] : kWords) {
    if (dtype == d) {
      return name;
    }
  }
  throw InvalidArgument("[testing.spec] dtype without a word");
}

kernels::TemplateArgs template_args(const Arguments& arguments) {
  kernels::TemplateArgs out;
  for (const auto& [name, value] : arguments) {
    if (auto* word = std::get_if<std::string>(&value)) {
      out.emplace_back(name, dtype(*word));
    } else if (auto* flag = std::get_if<bool>(&value)) {
      out.emplace_back(name, *flag);
    } else {
      out.emplace_back(name, std::get<int>(value));
    }
  }
  return out;
}

std::vector<mx::array> arrays(const Inputs& inputs) {
  std::vector<mx::array> out;
  for (const auto& [shape, word] : inputs) {
    out.push_back(
        mx::zeros(mx::Shape(shape.begin(), shape.end()), dtype(word)));
  }
  return out;
}

/** Launches as calls of `run`(name, template arguments, inputs) -> outputs,
 *  where they are built: bfloat16 arrays go by their bits. */
kernels::TextBackend through(nb::callable run) {
  return [run = std::move(run)](
             const kernels::KernelSpec& spec,
             const kernels::TemplateArgs& args,
             const std::vector<mx::array>& inputs,
             const kernels::LaunchPlan& plan) {
    nb::gil_scoped_acquire acquire;
    nb::list values, arrays;
    for (const auto& [name, value] : args) {
      if (auto* type = std::get_if<mx::Dtype>(&value)) {
        values.append(nb::make_tuple(name, word_of(*type)));
      } else if (auto* flag = std::get_if<bool>(&value)) {
        values.append(nb::make_tuple(name, *flag));
      } else {
        values.append(nb::make_tuple(name, std::get<int>(value)));
      }
    }
    for (const auto& a : inputs) {
      arrays.append(to_numpy(a));
    }
    nb::list made(run(spec.name, values, arrays));
    std::vector<mx::array> out;
    for (size_t i = 0; i < plan.shapes.size(); ++i) {
      auto a = to_mlx(nb::cast<NumPy>(made[i]));
      if (a.shape() != plan.shapes[i] || a.dtype() != plan.dtypes[i]) {
        throw InvalidArgument("[testing.text_backend] outputs of " + spec.name);
      }
      out.push_back(a);
    }
    return out;
  };
}

} // namespace

void register_spec(nb::module_& m) {
  m.def(
      "text_backend",
      [](std::optional<nb::callable> run) {
        kernels::set_text_backend(
            run ? through(std::move(*run)) : kernels::TextBackend());
      },
      "run"_a.none(),
      "Sends every launch to `run`, on any device; None ends that.");
  m.def(
      "kernel_text",
      [](const std::string& name) {
        const auto& spec = kernels::kernel_spec(name);
        return nb::make_tuple(
            spec.source,
            kernels::metal_header(spec),
            kernels::cuda_header(spec));
      },
      "name"_a);
  m.def(
      "kernel_plan",
      [](const std::string& name,
         const Arguments& arguments,
         const Inputs& inputs) {
        auto p = kernels::plan(
            kernels::kernel_spec(name),
            template_args(arguments),
            arrays(inputs));
        nb::list outputs;
        for (size_t i = 0; i < p.shapes.size(); i++) {
          outputs.append(nb::make_tuple(
              std::vector<int>(p.shapes[i].begin(), p.shapes[i].end()),
              word_of(p.dtypes[i])));
        }
        return nb::make_tuple(
            outputs,
            std::vector<int>(p.grid, p.grid + 3),
            std::vector<int>(p.group, p.group + 3));
      },
      "name"_a,
      "arguments"_a,
      "inputs"_a);
}

} // namespace qwenmtp::testing
