"""Every case on a real Apple GPU: Apple's compiler takes the text, and the float64 oracle agrees with the result."""

import tempfile
from collections.abc import Callable, Sequence

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from msl.families import ALL
from msl.harness.case import Case
from msl.harness.cpu import Result
from msl.harness.spec import evaluate

ONE_EACH = list({c.kernel.name: c for c in ALL}.values())


def to_mlx(array: np.ndarray) -> mx.array:
    """The array, bit for bit; NumPy's bfloat16 is not MLX's."""
    if array.dtype == ml_dtypes.bfloat16:
        return mx.array(np.ascontiguousarray(array).view(np.uint16)).view(mx.bfloat16)
    return mx.array(array)


def to_numpy(array: mx.array) -> np.ndarray:
    """The way back."""
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(array)


def call_of(case: Case, inputs: Sequence[np.ndarray]) -> Callable[..., list[mx.array]]:
    """The launch that the case's spec describes, through mx.fast.metal_kernel."""
    kernel = case.kernel
    sizes = kernel.bind(case.template, [a.shape for a in inputs])
    grid, group = kernel.geometry(sizes)
    run = mx.fast.metal_kernel(
        name=kernel.name,
        input_names=[a.name for a in kernel.inputs],
        output_names=[a.name for a in kernel.outputs],
        source=kernel.source,
        header=kernel.header,
    )

    def call(*arrays: mx.array) -> list[mx.array]:
        return run(
            inputs=list(arrays),
            template=[(n, getattr(mx, v) if isinstance(v, str) else v) for n, v in case.template.items()],
            grid=grid,
            threadgroup=group,
            output_shapes=[tuple(evaluate(d, sizes) for d in a.dims) for a in kernel.outputs],
            output_dtypes=[getattr(mx, kernel.dtype(a, case.template)) for a in kernel.outputs],
        )

    return call


@pytest.mark.metal
@pytest.mark.parametrize("case", ALL, ids=lambda c: c.id)
def test_the_gpu_agrees_with_the_oracle(case: Case) -> None:
    inputs = case.inputs()
    outputs = call_of(case, inputs)(*map(to_mlx, inputs))
    mx.eval(outputs)
    case.check(Result([to_numpy(a) for a in outputs], [], [], 0), inputs)


@pytest.mark.parametrize("case", ONE_EACH, ids=lambda c: c.id)
def test_the_call_is_one_that_mlx_takes(case: Case) -> None:
    """Traced, MLX checks arguments and shapes and does not ask for a GPU."""
    inputs = case.inputs()
    with tempfile.NamedTemporaryFile() as file:
        mx.export_function(file.name, call_of(case, inputs), *map(to_mlx, inputs))


def test_bfloat16_crosses_both_ways_bit_for_bit() -> None:
    bits = np.arange(0, 2**16, 37, dtype=np.uint16).view(ml_dtypes.bfloat16)
    assert np.array_equal(to_numpy(to_mlx(bits)).view(np.uint16), bits.view(np.uint16))
