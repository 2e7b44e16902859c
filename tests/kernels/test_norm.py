"""csrc/kernels/norm.cpp against its definition in float64 (model.md 4)."""

import numpy as np
import pytest
from kernels.launch import DTYPES, close, invariant, native, normal, rounding, rows_alone, stored, wide

from qwenmtp.errors import InvalidRequest


@pytest.mark.parametrize("width", [5, 256, 10240])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: str, width: int) -> None:
    rng, rnd = np.random.default_rng(width), rounding(dtype)
    sizes = np.array([[1.0], [1e-3], [0.0]])  # eps decides nothing, half, all of a row
    x, weight = stored(rng.standard_normal((3, width)) * sizes, dtype), normal(rng, dtype, width)
    v = wide(x)
    unit = rnd(v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-6))
    got = invariant(lambda: native.rms_norm(x, weight, 1e-6).run())[0]
    for row in range(3):
        close(got[row], rnd(unit * wide(weight))[row])
    rows_alone(lambda begin, end: native.rms_norm(x[begin:end], weight, 1e-6).run(), 3)


def test_a_weight_of_another_width_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"rms_norm\] weight \[7\], expected \[8\]"):
        native.rms_norm(np.zeros((1, 8), np.float32), np.zeros(7, np.float32), 1e-6).run()
