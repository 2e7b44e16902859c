"""Runs a kernel's text on a CUDA device, through mx.fast.cuda_kernel; the call is cpu.run's."""

from collections.abc import Mapping, Sequence
from functools import cache

import ml_dtypes
import mlx.core as mx
import numpy as np

from .cpu import Result
from .spec import METAL, Kernel, Value, evaluate

POISON = -77  # what an output holds before the launch: a value that stays is an error


@cache
def compiled(kernel: Kernel) -> object:
    """MLX's function for one kernel, with the header that csrc/kernels/spec.cpp builds."""
    vocabulary = (METAL / "cuda.h").read_text()
    header = f"{vocabulary}\nnamespace mlx::core::cu {{\n{kernel.header}\n}}  // namespace mlx::core::cu\n"
    names = [[a.name for a in arguments] for arguments in (kernel.inputs, kernel.outputs)]
    return mx.fast.cuda_kernel(
        name=kernel.name, input_names=names[0], output_names=names[1], source=kernel.source, header=header
    )


def launch(
    kernel: Kernel, template: Mapping[str, Value], inputs: Sequence[mx.array], init: float | None = None
) -> list[mx.array]:
    """One lazy launch over MLX arrays, outputs filled with `init` before it."""
    sizes = kernel.bind(template, [tuple(a.shape) for a in inputs])
    grid, group = kernel.geometry(sizes)
    return compiled(kernel)(
        inputs=list(inputs),
        template=[(n, getattr(mx, v) if isinstance(v, str) else v) for n, v in template.items()],
        grid=grid,
        threadgroup=group,
        output_shapes=[tuple(evaluate(d, sizes) for d in a.dims) for a in kernel.outputs],
        output_dtypes=[getattr(mx, kernel.dtype(a, template)) for a in kernel.outputs],
        init_value=init,
    )


def to_mlx(a: np.ndarray) -> mx.array:
    """bfloat16 travels by its bits: NumPy has no such type."""
    return mx.array(a.view(np.uint16)).view(mx.bfloat16) if a.dtype == ml_dtypes.bfloat16 else mx.array(a)


def to_numpy(a: mx.array) -> np.ndarray:
    return np.array(a.view(mx.uint16)).view(ml_dtypes.bfloat16) if a.dtype == mx.bfloat16 else np.array(a)


def run(
    kernel: Kernel,
    template: Mapping[str, Value],
    inputs: Sequence[np.ndarray],
    schedule: str = "device",
    cuda_grid: bool = True,
    cut: tuple[int, int] | None = None,
) -> Result:
    """As cpu.run, on the device: the hardware schedules, and finds nothing by itself."""
    outputs = launch(kernel, template, [to_mlx(np.ascontiguousarray(a)) for a in inputs], POISON)
    mx.eval(outputs)
    return Result([to_numpy(o) for o in outputs], [], [], 0)
