/** How a kernel meets MLX. The only file, with kernel.cpp, that names MLX's
 *  primitive and custom-kernel interfaces. */
#pragma once

#include <functional>
#include <vector>

#include <mlx/array.h>
#include <mlx/stream.h>
#include <mlx/utils.h>

#include "kernels/cpu/body.h"
#include "kernels/spec.h"

namespace qwenmtp::kernels {

using mlx::core::array;

/** Binds a CPU body to evaluated arrays: reads pointers and strides of the
 * inputs and of the outputs, which are allocated and row-contiguous, and
 * returns the job. The inputs' values are there only when the job runs. */
using BindCpu = std::function<std::function<void()>(
    const std::vector<array>& inputs,
    std::vector<array>& outputs)>;

/** A lazy node of MLX's graph whose job is queued on the CPU stream `s`, or on
 * the CPU's default stream where `s` is a GPU's: MLX orders the two. `name` is
 * the kernel's, a literal. */
std::vector<array> cpu_node(
    const char* name,
    BindCpu bind,
    const std::vector<array>& inputs,
    const std::vector<mlx::core::Shape>& shapes,
    const std::vector<mlx::core::Dtype>& dtypes,
    mlx::core::StreamOrDevice s);

/** Whether launches on `s` run the text of metal/: on a GPU's stream, else the
 * CPU bodies. */
bool runs_text(mlx::core::StreamOrDevice s);

/** A lazy node that runs a kernel's text from metal/ on the GPU of this build,
 *  Metal or CUDA. Inputs are made row-contiguous. Throws InternalError where an
 *  argument is not its spec's. */
std::vector<array> text_node(
    const std::string& name,
    const TemplateArgs& args,
    const std::vector<array>& inputs,
    mlx::core::StreamOrDevice s);

/** Makes the outputs of one launch. */
using TextBackend = std::function<std::vector<array>(
    const KernelSpec& spec,
    const TemplateArgs& args,
    const std::vector<array>& inputs,
    const LaunchPlan& plan)>;

/** From now on every launch, on any stream, is text run by `backend`; empty
 * ends that. For counting launches and for tests without a GPU. */
void set_text_backend(TextBackend backend);

/** While one lives, graphs are a GPU's on any machine: launches are nodes that
 * are named like their kernels, and nothing can be evaluated. */
class Planning {
 public:
  Planning();
  ~Planning();
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;
};

/** Whether `a` is an output of a launch that was planned. */
bool is_planned(const array& a);

/** A {1} array. The same value gives the same array while few are in use: a GPU
 * need not fetch it again. */
array scalar(int value);
array scalar(float value);

/** Storage type of a dense array. Throws InvalidArgument for integers. */
cpu::Type type_of(const array& a);

/** Rows of an array seen as [rows, last axis]. Throws InternalError unless the
 * last axis is contiguous and the others have one stride. */
cpu::Rows rows_of(const array& a);
/** The columns of `a` from `column` on. */
cpu::Rows columns_of(const array& a, int column);
cpu::OutRows out_rows_of(array& a);
cpu::Vector vector_of(const array& a);

} // namespace qwenmtp::kernels
