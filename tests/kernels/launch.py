"""What the kernel tests share: dtypes, comparison, and the runs that must agree bit for bit."""

from collections.abc import Callable, Sequence

import _qwenmtp_testing as testing
import numpy as np
from ml_dtypes import bfloat16

native = testing.kernels

Array = np.ndarray
ISAS = native.available_isas()
DTYPES = ("float32", "bfloat16")


def stored(a: Array, dtype: str) -> Array:
    """`a` as the extension takes it: float32, or the bits of bfloat16."""
    return a.astype(np.float32) if dtype == "float32" else a.astype(bfloat16).view(np.uint16)


def wide(a: Array) -> Array:
    """float64 values of what the extension took or gave."""
    return (a.view(bfloat16) if a.dtype == np.uint16 else a).astype(np.float64)


def rounding(dtype: str) -> Callable[[Array], Array]:
    """To the activation type and back: the identity where that is float32."""
    return (lambda v: v) if dtype == "float32" else lambda v: np.asarray(v).astype(bfloat16).astype(np.float64)


def close(got: Array, want: Array, ulps: float = 1.0) -> None:
    """Within 1e-5 of the largest value in float32 (sums of hundreds of terms in another order), within `ulps`
    roundings of bfloat16, each 2^-8 of its value, where the oracle rounds at the same points."""
    scale = np.abs(want).max() if want.size else 0.0
    if got.dtype == np.uint16:
        np.testing.assert_allclose(wide(got), want, rtol=ulps * 2**-8, atol=ulps * scale * 2**-12)
    else:
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * scale + 1e-30)


def same_bits(a: Sequence[Array], b: Sequence[Array]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))


def invariant(run: Callable[[], Sequence[Array]]) -> Sequence[Array]:
    """The result of `run`, which no thread count and no instruction set may change."""
    first = run()
    for isa in ISAS:
        for threads in (1, 2, 3):
            native.select_isa(isa)
            native.set_threads(threads)
            same_bits(first, run())
    return first


def normal(rng: np.random.Generator, dtype: str, *shape: int, scale: float = 1.0) -> Array:
    return stored(rng.standard_normal(shape) * scale, dtype)


def rows_alone(run: Callable[[int, int], Sequence[Array]], n: int) -> None:
    """run(begin, end) of rows [0, m) for m = 1..n has in row r the bits of the launch of row r alone."""
    alone = [run(r, r + 1) for r in range(n)]
    for m in range(1, n + 1):
        together = run(0, m)
        for r in range(m):
            same_bits([a[r : r + 1] for a in together], alone[r])
