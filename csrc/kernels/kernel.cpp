#include "kernels/kernel.h"

#include <mutex>

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/backend/metal/metal.h>
#include <mlx/fast.h>
#include <mlx/primitives.h>

#include "base/error.h"

namespace qwenmtp::kernels {

namespace mx = mlx::core;

namespace {

class CpuNode : public mx::Primitive {
 public:
  CpuNode(mx::Stream stream, const char* name, BindCpu bind)
      : Primitive(stream), name_(name), bind_(std::move(bind)) {
  }

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs)
      override {
    for (array& out : outputs) {
      out.set_data(mx::allocator::malloc(out.nbytes()));
    }
    // Inputs are not computed yet: only the queued job may read them.
    mx::cpu::get_command_encoder(stream()).dispatch(bind_(inputs, outputs));
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw InternalError(
        std::string("[kernels.") + name_ + "] CPU node on a GPU stream");
  }

  const char* name() const override {
    return name_;
  }

 private:
  const char* name_;
  BindCpu bind_;
};

class PlannedNode : public mx::Primitive {
 public:
  PlannedNode(mx::Stream stream, const char* name)
      : Primitive(stream), name_(name) {
  }

  void eval_cpu(const std::vector<array>&, std::vector<array>&) override {
    throw InternalError(
        std::string("[kernels.") + name_ + "] evaluated, expected a plan only");
  }
  void eval_gpu(const std::vector<array>& in, std::vector<array>& out)
      override {
    eval_cpu(in, out);
  }

  const char* name() const override {
    return name_;
  }

 private:
  const char* name_; // of the embedded specs
};

std::vector<std::string> names(const std::vector<KernelArgument>& arguments) {
  std::vector<std::string> out;
  for (const auto& a : arguments) {
    out.push_back(a.name);
  }
  return out;
}

mx::fast::CustomKernelFunction make_kernel(const KernelSpec& spec) {
  auto inputs = names(spec.inputs);
  auto outputs = names(spec.outputs);
  if (mx::metal::is_available()) {
    return mx::fast::metal_kernel(
        spec.name,
        inputs,
        outputs,
        spec.source,
        metal_header(spec));
  }
  return mx::fast::cuda_kernel(
      spec.name,
      inputs,
      outputs,
      spec.source,
      cuda_header(spec));
}

TextBackend& text_backend() {
  static TextBackend backend;
  return backend;
}

template <typename V>
array kept_scalar(V value) {
  constexpr size_t kMost = 256;
  static std::mutex mutex;
  static std::map<V, array> kept;
  std::lock_guard lock(mutex);
  if (kept.size() > kMost) {
    kept.clear();
  }
  return kept.try_emplace(value, array({value})).first->second;
}

/** Elements between rows of a seen as [rows, last axis]. */
int64_t row_stride(const array& a) {
  const int last = a.ndim() - 1;
  if (last < 0) {
    return 1;
  }
  if (a.shape(last) > 1 && a.strides(last) != 1) {
    throw InternalError("[kernels.rows_of] last axis is not contiguous");
  }
  int64_t stride = a.shape(last);
  int64_t expected = -1;
  for (int axis = last - 1; axis >= 0; --axis) {
    if (a.shape(axis) == 1) {
      continue;
    }
    if (expected < 0) {
      stride = a.strides(axis);
    } else if (a.strides(axis) != expected) {
      throw InternalError("[kernels.rows_of] rows have no single stride");
    }
    expected = a.strides(axis) * a.shape(axis);
  }
  return stride;
}

} // namespace

std::vector<array> cpu_node(
    const char* name,
    BindCpu bind,
    const std::vector<array>& inputs,
    const std::vector<mx::Shape>& shapes,
    const std::vector<mx::Dtype>& dtypes,
    mx::StreamOrDevice s) {
  auto stream = mx::to_stream(s);
  if (stream.device != mx::Device::cpu) {
    stream = mx::to_stream(mx::Device(mx::Device::cpu));
  }
  auto node = std::make_shared<CpuNode>(stream, name, std::move(bind));
  return array::make_arrays(shapes, dtypes, node, inputs);
}

bool runs_text(mx::StreamOrDevice s) {
  return text_backend() || mx::to_stream(s).device == mx::Device::gpu;
}

void set_text_backend(TextBackend backend) {
  text_backend() = std::move(backend);
}

Planning::Planning() {
  set_text_backend([](const KernelSpec& spec,
                      const TemplateArgs&,
                      const std::vector<array>& inputs,
                      const LaunchPlan& plan) {
    auto node = std::make_shared<PlannedNode>(
        mx::default_stream(mx::default_device()),
        spec.name.c_str());
    return array::make_arrays(plan.shapes, plan.dtypes, node, inputs);
  });
}

Planning::~Planning() {
  set_text_backend({});
}

bool is_planned(const array& a) {
  return a.has_primitive() &&
         dynamic_cast<const PlannedNode*>(&a.primitive()) != nullptr;
}

std::vector<array> text_node(
    const std::string& name,
    const TemplateArgs& args,
    const std::vector<array>& inputs,
    mx::StreamOrDevice s) {
  const KernelSpec& spec = kernel_spec(name);
  auto p = plan(spec, args, inputs);
  if (const auto& backend = text_backend()) {
    return backend(spec, args, inputs, p);
  }
  static std::mutex mutex;
  static std::map<std::string, mx::fast::CustomKernelFunction> kernels;
  std::unique_lock lock(mutex);
  auto found = kernels.find(name);
  if (found == kernels.end()) {
    found = kernels.emplace(name, make_kernel(spec)).first;
  }
  const auto& kernel = found->second;
  lock.unlock();
  return kernel(
      inputs,
      p.shapes,
      p.dtypes,
      {p.grid[0], p.grid[1], p.grid[2]},
      {p.group[0], p.group[1], p.group[2]},
      args,
      std::nullopt,
      false,
      s);
}

array scalar(int value) {
  return kept_scalar(value);
}

array scalar(float value) {
  return kept_scalar(value);
}

cpu::Type type_of(const array& a) {
  switch (a.dtype().val()) {
    case mx::Dtype::Val::float32:
      return cpu::Type::f32;
    case mx::Dtype::Val::bfloat16:
      return cpu::Type::bf16;
    case mx::Dtype::Val::float16:
      return cpu::Type::f16;
    default:
      throw InvalidArgument(
          "[kernels.type_of] integer array, expected float32, bfloat16 or "
          "float16");
  }
}

cpu::Rows rows_of(const array& a) {
  return {a.data<char>(), row_stride(a)};
}

cpu::Rows columns_of(const array& a, int column) {
  return {a.data<char>() + column * a.itemsize(), row_stride(a)};
}

cpu::OutRows out_rows_of(array& a) {
  return {a.data<char>(), row_stride(a)};
}

cpu::Vector vector_of(const array& a) {
  if (!a.flags().row_contiguous) {
    throw InternalError("[kernels.vector_of] array is not contiguous");
  }
  return {a.data<char>(), type_of(a)};
}

} // namespace qwenmtp::kernels
