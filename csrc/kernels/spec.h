/** The `//@` lines of metal/: what a launch of each kernel is. The grammar is
 * in docs/kernels.md; tests/msl reads the same lines with the same rules.
 * Nothing is launched here. */
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <mlx/array.h>
#include <mlx/fast.h>

namespace qwenmtp::kernels {

/** Template arguments by name, in the spec's order. */
using TemplateArgs =
    std::vector<std::pair<std::string, mlx::core::fast::TemplateArg>>;

struct KernelArgument {
  std::string name;
  std::string dtype; // a dtype word or a type parameter
  std::vector<std::string> dims;
};

struct KernelSpec {
  std::string name;
  std::string family;                  // file in metal/
  std::vector<std::string> parameters; // of the template
  std::vector<KernelArgument> inputs;
  std::vector<KernelArgument> outputs;
  std::vector<std::string> grid; // expressions, threads
  std::vector<std::string> group;
  std::string source; // MLX's `source`: threadgroup arrays and one call
};

/** Throws InternalError if metal/ has no such kernel. */
const KernelSpec& kernel_spec(const std::string& name);

/** MLX's `header` for a kernel: shared words, then its family's text. */
std::string metal_header(const KernelSpec& spec);
std::string cuda_header(const KernelSpec& spec);

/** One launch: outputs to allocate, threads to start. */
struct LaunchPlan {
  std::vector<mlx::core::Shape> shapes;
  std::vector<mlx::core::Dtype> dtypes;
  int grid[3];
  int group[3];
};

/** Binds sizes to the inputs' shapes. Throws InternalError where an input's
 *  shape or dtype, or a template argument, is not the spec's. */
LaunchPlan plan(
    const KernelSpec& spec,
    const TemplateArgs& args,
    const std::vector<mlx::core::array>& inputs);

} // namespace qwenmtp::kernels
