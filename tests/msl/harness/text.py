"""The text that MLX builds around a kernel, written here without MLX.

test_mlx_text.py compares it with what mx.fast.metal_kernel itself writes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .spec import DTYPES, Kernel, Value

# Every name MLX looks for in `source` and the parameter it then adds.
ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": "uint",
    "dispatch_simdgroups_per_threadgroup": "uint",
    "dispatch_threads_per_threadgroup": "uint3",
    "grid_origin": "uint3",
    "grid_size": "uint3",
    "quadgroup_index_in_threadgroup": "uint",
    "quadgroups_per_threadgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint",
    "simdgroups_per_threadgroup": "uint",
    "thread_execution_width": "uint",
    "thread_index_in_quadgroup": "uint",
    "thread_index_in_simdgroup": "uint",
    "thread_index_in_threadgroup": "uint",
    "thread_position_in_grid": "uint3",
    "thread_position_in_threadgroup": "uint3",
    "threadgroup_position_in_grid": "uint3",
    "threadgroups_per_grid": "uint3",
    "threads_per_grid": "uint3",
    "threads_per_simdgroup": "uint",
    "threads_per_threadgroup": "uint3",
}

CUDA_DTYPES = DTYPES | {"float16": "__half", "bfloat16": "__nv_bfloat16"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of the generated signature, without its attribute."""

    type: str
    name: str
    attribute: str


@dataclass(frozen=True)
class Input:
    """What MLX's text depends on: dtype name, element count, rank."""

    name: str
    dtype: str
    size: int
    ndim: int


def parameters(
    source: str, inputs: Sequence[Input], outputs: Sequence[tuple[str, str]], atomic: bool = False
) -> list[Parameter]:
    """The parameters of the generated function, in order.

    Args:
        source: The body in which MLX searches for `_shape`, `_strides`, `_ndim` and attributes.
        inputs: One entry an input.
        outputs: Name and dtype name of each output.
        atomic: `atomic_outputs` of the call.
    """
    out: list[Parameter] = []

    def buffer(type_: str, name: str) -> None:
        out.append(Parameter(type_, name, f"buffer({len(out)})"))

    for i in inputs:
        space = "constant" if i.size < 8 else "device"
        buffer(f"const {space} {DTYPES[i.dtype]}{'*' if i.ndim else '&'}", i.name)
        if i.ndim:
            if f"{i.name}_shape" in source:
                buffer("const constant int*", f"{i.name}_shape")
            if f"{i.name}_strides" in source:
                buffer("const constant int64_t*", f"{i.name}_strides")
            if f"{i.name}_ndim" in source:
                buffer("const constant int&", f"{i.name}_ndim")
    for name, dtype in outputs:
        buffer(f"device atomic<{DTYPES[dtype]}>*" if atomic else f"device {DTYPES[dtype]}*", name)
    out += [Parameter(t, a, a) for a, t in ATTRIBUTES.items() if a in source]
    return out


def function_name(
    name: str, template: Mapping[str, Value], inputs: Sequence[Input], outputs: Sequence[tuple[str, str]]
) -> str:
    """The name MLX gives the function: unique for its types and template arguments."""
    suffix = ["s" if not i.ndim else "c" if i.size < 8 else "" for i in inputs]
    parts = [_argument(v) for v in template.values()]
    parts += [DTYPES[i.dtype] + s for i, s in zip(inputs, suffix, strict=True)] + [DTYPES[d] for _, d in outputs]
    return re.sub(r"\W", "_", f"custom_kernel_{name}" + "_" * bool(template) + "".join(f"_{p}" for p in parts))


def _argument(value: Value) -> str:
    return DTYPES[value] if isinstance(value, str) else str(int(value))


def metal(
    name: str,
    header: str,
    source: str,
    template: Mapping[str, Value],
    inputs: Sequence[Input],
    outputs: Sequence[tuple[str, str]],
    atomic: bool = False,
) -> str:
    """What MLX hands to the Metal compiler, after its own prelude."""
    function = function_name(name, template, inputs, outputs)
    text = header
    if template:
        kinds = [
            "typename" if isinstance(v, str) else "bool" if isinstance(v, bool) else "int" for v in template.values()
        ]
        text += "template <" + ", ".join(f"{k} {n}" for k, n in zip(kinds, template, strict=True)) + ">\n"
    signature = ",\n".join(
        f"  {p.type} {p.name} [[{p.attribute}]]" for p in parameters(source, inputs, outputs, atomic)
    )
    text += f"[[kernel]] void {function}(\n{signature}) {{\n{source}\n}}\n"
    if template:
        instance = f"{function}<{', '.join(map(_argument, template.values()))}>"
        text += f'\ntemplate [[host_name("{function}")]] [[kernel]] decltype({instance}) {instance};\n'
    return text


def cuda(kernel: Kernel, vocabulary: str, template: Mapping[str, Value]) -> str:
    """What MLX hands to NVRTC, after its includes; `vocabulary` is metal/cuda.h."""
    arguments = [("const ", a) for a in kernel.inputs] + [("", a) for a in kernel.outputs]
    signature = ",\n".join(f"    {q}{CUDA_DTYPES[kernel.dtype(a, template)]}* {a.name}" for q, a in arguments)
    constants = "".join(
        f"  using {n} = {CUDA_DTYPES[v]};\n"
        if isinstance(v, str)
        else f"  constexpr {'bool' if isinstance(v, bool) else 'int'} {n} = {int(v)};\n"
        for n, v in template.items()
    )
    return (
        f"{vocabulary}\nnamespace mlx::core::cu {{\n{kernel.header}\n}}  // namespace mlx::core::cu\n"
        f"namespace mlx::core::cu {{\n__global__ void custom_kernel_{kernel.name}(\n{signature}) {{\n"
        f"{constants}\n{kernel.source}\n}}\n}}  // namespace mlx::core::cu\n"
    )
