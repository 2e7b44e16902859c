"""A kernel, one set of shapes, inputs, and what the float64 oracle says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from . import backend
from .cpu import Result, numpy_dtype
from .spec import Kernel, Value

Array = np.ndarray

# float32: a relative error of the sum's own scale. 16-bit types: the kernel may
# round one point to the other neighbour, which is one unit of the last place
# (2**-8 of the value, 2**-11 for float16), and carry it through one more product.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2**-6, "float16": 2**-9}


@dataclass(frozen=True)
class Case:
    """One launch and its expected outputs.

    `build` makes inputs from a seeded generator; `oracle` maps these inputs to
    the outputs in float64 (or integers, which must match exactly).
    """

    kernel: Kernel
    shape: str
    template: dict[str, Value]
    build: Callable[[np.random.Generator], list[Array]]
    oracle: Callable[[Sequence[Array]], Sequence[Array]]

    @property
    def id(self) -> str:
        """kernel-shape-types, as pytest shows it."""
        return "-".join([self.kernel.name, self.shape, *(str(v) for v in self.template.values() if isinstance(v, str))])

    def inputs(self) -> list[Array]:
        """The inputs of this case, the same on every call."""
        return self.build(np.random.default_rng(7))

    def check(self, result: Result, inputs: Sequence[Array]) -> None:
        """Asserts no finding and every output within its type's tolerance."""
        assert not result.findings, result.findings
        assert result.tg_bytes <= 32 * 1024
        for argument, got, want in zip(self.kernel.outputs, result.outputs, self.oracle(inputs), strict=True):
            if want.dtype.kind in "iu":
                np.testing.assert_array_equal(got, want, err_msg=argument.name)
                continue
            if got.dtype.itemsize == 2:
                # Rounding where the oracle rounds: another value is a neighbour's tie, and rare.
                n_other = (got != want.astype(np.float32).astype(got.dtype)).sum()
                assert n_other <= max(1, want.size // 100), (argument.name, n_other, want.size)
            # An output is as exact as the narrowest type on the way to it.
            names = [str(v) for v in self.template.values() if isinstance(v, str)]
            tolerance = max(TOLERANCE[n] for n in [*names, self.kernel.dtype(argument, self.template)])
            finite = np.abs(want[np.isfinite(want)])
            scale = finite.max() if finite.size else 0.0
            np.testing.assert_allclose(
                got.astype(np.float64),
                want,
                rtol=tolerance,
                atol=tolerance * max(scale, 1e-30) * 0.25,
                err_msg=argument.name,
            )

    def run(
        self,
        inputs: Sequence[Array],
        schedule: str = "ascending",
        cuda_grid: bool = False,
        cut: tuple[int, int] | None = None,
    ) -> Result:
        """Launches the kernel text on these inputs; see `cpu.run`."""
        return backend.run(self.kernel, self.template, inputs, schedule, cuda_grid, cut)


def rounding(dtype: str) -> Callable[[Array], Array]:
    """Rounds float64 values once to a model type; float32 stays exact."""
    if dtype == "float32":
        return lambda v: v
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    return lambda v: np.asarray(v).astype(np.float32).astype(kind).astype(np.float64)


def normal(rng: np.random.Generator, dtype: str, *shape: int, scale: float = 1.0) -> Array:
    """Normal values of a spec dtype."""
    return (rng.standard_normal(shape) * scale).astype(np.float32).astype(numpy_dtype(dtype))


def wide(*arrays: Array) -> list[Array]:
    """The arrays as float64, for an oracle."""
    return [a.astype(np.float64) if a.dtype.kind not in "iu" else a for a in arrays]
