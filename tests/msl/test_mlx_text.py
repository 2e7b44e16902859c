"""harness/text.py writes what mx.fast.metal_kernel itself hands to the Metal compiler.

MLX builds that text on any machine: traced by mx.export_function, a call with
verbose=True prints it instead of being refused for lack of a GPU.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

import mlx.core as mx
import pytest
from msl.families import ALL
from msl.harness import text
from msl.harness.case import Case

MX = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16, "int32": mx.int32, "uint32": mx.uint32}
MX |= {"uint8": mx.uint8}
ONE_EACH = list({c.kernel.name: c for c in ALL}.values())


@contextlib.contextmanager
def captured_stdout() -> Iterator[list[str]]:
    """Standard output of the process, C++ included, as one string."""
    box: list[str] = []
    with tempfile.TemporaryFile("w+") as file:
        sys.stdout.flush()
        saved = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield box
        finally:
            os.dup2(saved, 1)
            os.close(saved)
            file.seek(0)
            box.append(file.read())


def text_of_mlx(name, header, source, template, inputs, outputs, atomic=False) -> str:
    """The text of one call, by MLX. A 0-dim input is passed as a number."""
    kernel = mx.fast.metal_kernel(
        name=name,
        input_names=[i.name for i in inputs],
        output_names=[n for n, _ in outputs],
        source=source,
        header=header,
        atomic_outputs=atomic,
    )

    def call(*arrays: mx.array) -> list[mx.array]:
        rest = iter(arrays)
        return kernel(
            inputs=[next(rest) if i.ndim else 1.5 for i in inputs],
            template=[(n, MX[v] if isinstance(v, str) else v) for n, v in template.items()],
            grid=(32, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[(4,)] * len(outputs),
            output_dtypes=[MX[d] for _, d in outputs],
            verbose=True,
        )

    arrays = [mx.zeros((1,) * (i.ndim - 1) + (i.size,), MX[i.dtype]) for i in inputs if i.ndim]
    with captured_stdout() as box, tempfile.NamedTemporaryFile() as file:
        mx.export_function(file.name, call, *arrays)
    return box[0].split("```\n", 1)[1].rsplit("\n```", 1)[0]


def text_of_ours(name, header, source, template, inputs, outputs, atomic=False) -> str:
    return text.metal(name, header, source, template, inputs, outputs, atomic)


@pytest.mark.parametrize("case", ONE_EACH, ids=lambda c: c.id)
def test_our_kernels(case: Case) -> None:
    arrays = case.inputs()
    inputs = [text.Input(a.name, x.dtype.name, x.size, x.ndim) for a, x in zip(case.kernel.inputs, arrays, strict=True)]
    outputs = [(a.name, case.kernel.dtype(a, case.template)) for a in case.kernel.outputs]
    call = (case.kernel.name, case.kernel.header, case.kernel.source, case.template, inputs, outputs)
    assert text_of_ours(*call).strip() == text_of_mlx(*call).strip()


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("template", [{}, {"T": "bfloat16", "N": 5, "F": True}], ids=["plain", "template"])
@pytest.mark.parametrize(
    "source", ["", "y[thread_position_in_grid.x] = a[0]; // a_shape c_ndim", "a_shape b_strides b_ndim grid_size"]
)
def test_every_parameter_mlx_adds(source: str, template: dict, atomic: bool) -> None:
    inputs = [text.Input("a", "float32", 16, 2), text.Input("b", "bfloat16", 3, 1), text.Input("c", "float32", 1, 0)]
    call = ("probe", "// header\n", source, template, inputs, [("y", "float32"), ("z", "int32")])
    assert text_of_ours(*call, atomic=atomic).strip() == text_of_mlx(*call, atomic=atomic).strip()


@pytest.mark.parametrize("name", text.ATTRIBUTES)
def test_every_attribute(name: str) -> None:
    call = ("probe", "", f"y[0] = {name};", {}, [text.Input("a", "uint8", 8, 1)], [("y", "uint32")])
    assert text_of_ours(*call).strip() == text_of_mlx(*call).strip()
