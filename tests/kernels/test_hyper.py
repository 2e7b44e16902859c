"""csrc/kernels/hyper.cpp against tests/oracle/naive_hyper.py."""

from collections.abc import Callable

import numpy as np
import pytest
from kernels.launch import DTYPES, Array, close, invariant, native, normal, rounding, rows_alone, same_bits, wide

from oracle import naive_hyper as naive
from oracle import naive_rows

EPS = 1e-6
# C, H, R
SHAPES = {"demo": (4, 256, 32), "released": (4, 2560, 320), "ragged": (2, 37, 5)}


def weights(rng: np.random.Generator, dtype: str, shape: str) -> list[Array]:
    streams, hidden, rank = SHAPES[shape]
    w = streams * hidden
    return [
        normal(rng, dtype, w),
        normal(rng, "bfloat16", rank, w, scale=w**-0.5),
        normal(rng, "bfloat16", w, rank, scale=rank**-0.5),
        normal(rng, "bfloat16", streams, w, scale=w**-0.5),
    ]


def launch(x: Array, w: list[Array], streams: int, mixer: bool = False):
    return native.hyper_read(x, w[0], (w[1],), (w[2],), None if mixer else (w[3],), streams, EPS)


def read(x: Array, w: list[Array], streams: int, rnd: Callable[[Array], Array]) -> tuple[Array, Array]:
    """mix and inject in float64."""
    norm, down, up, inject = w
    z = naive.norm(x, norm, streams, EPS, rnd)
    low = naive_rows.silu(rnd(rnd(z @ down.T) / streams), rnd)
    return naive.mix(z, rnd(low @ up.T), streams, rnd), naive.inject(rnd(rnd(z @ inject.T) / streams), rnd)


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_read(dtype: str, shape: str, n: int) -> None:
    rng = np.random.default_rng(n)
    streams, hidden, _ = SHAPES[shape]
    w = weights(rng, dtype, shape)
    x = normal(rng, dtype, n, streams * hidden, scale=3.0)
    mix, inject = launch(x, w, streams).run()
    want = read(wide(x), [wide(a) for a in w], streams, rounding(dtype))
    # bf16: gate, product and each partial sum may fall on the other side of a rounding
    close(mix, want[0], ulps=4)
    close(inject, want[1], ulps=2)
    (mixer,) = launch(x, w, streams, mixer=True).run()
    same_bits([mixer], [mix])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_write_then_read_in_one(dtype: str, shape: str) -> None:
    rng = np.random.default_rng(7)
    streams, hidden, _ = SHAPES[shape]
    w = weights(rng, dtype, shape)
    x, y = normal(rng, dtype, 3, streams * hidden), normal(rng, dtype, 3, hidden)
    g = normal(rng, dtype, 3, streams)
    (written,) = native.hyper_write(x, y, g).run()
    close(written, naive.write(wide(x), wide(y), wide(g), rounding(dtype)))
    fused = native.hyper_write_read(x, y, g, w[0], (w[1],), (w[2],), (w[3],), streams, EPS).run()
    same_bits(fused, [written, *launch(written, w, streams).run()])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: str) -> None:
    rng = np.random.default_rng(3)
    streams, hidden, _ = SHAPES["demo"]
    w = weights(rng, dtype, "demo")
    x, y = normal(rng, dtype, 12, streams * hidden), normal(rng, dtype, 12, hidden)
    g = normal(rng, dtype, 12, streams)

    def run(b: int, e: int) -> list[Array]:
        return native.hyper_write_read(x[b:e], y[b:e], g[b:e], w[0], (w[1],), (w[2],), (w[3],), streams, EPS).run()

    rows_alone(run, 12)
    invariant(lambda: run(0, 12))
    invariant(lambda: run(0, 1))
