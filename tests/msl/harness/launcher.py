"""Puts kernel text, run by the harness, under the launchers of csrc/kernels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import _qwenmtp_testing as testing
import ml_dtypes
import numpy as np

from . import backend
from .spec import Kernel, Value, load

FAMILIES = ("embed", "gdn", "hyper", "moe", "ple", "qsa", "rows", "sample")
KERNELS: dict[str, Kernel] = {}
for _family in FAMILIES:
    KERNELS |= load(_family)


def run(name: str, template: Sequence[tuple[str, Value]], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One launch, with every check on."""
    kernel, arguments = KERNELS[name], dict(template)
    arrays = [
        a.view(ml_dtypes.bfloat16) if kernel.dtype(i, arguments) == "bfloat16" else a
        for i, a in zip(kernel.inputs, inputs, strict=True)
    ]
    result = backend.run(kernel, arguments, arrays)
    assert not result.findings, (name, result.findings)
    return [np.ascontiguousarray(a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a) for a in result.outputs]


@contextmanager
def text() -> Iterator[None]:
    """Every launch inside is run()."""
    testing.text_backend(run)
    try:
        yield
    finally:
        testing.text_backend(None)
