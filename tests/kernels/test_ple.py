"""csrc/kernels/ple.cpp against tests/oracle/naive_ple.py."""

import numpy as np
import pytest
from kernels.launch import DTYPES, Array, close, invariant, native, normal, rounding, same_bits, wide

from oracle import naive_ple as naive

EPS = 1e-6
KERNEL, DILATION = 4, 3
TAIL = (KERNEL - 1) * DILATION
# C, H
SHAPES = {"demo": (4, 256), "released": (4, 2560), "ragged": (2, 37)}


class Layer:
    """Random weights, state and rows of one shape."""

    def __init__(self, dtype: str, shape: str, n: int) -> None:
        rng = np.random.default_rng(n)
        self.streams, hidden = SHAPES[shape]
        w = self.streams * hidden
        self.x, self.key, self.value = (normal(rng, dtype, n, size) for size in (w, w, hidden))
        self.conv = normal(rng, dtype, TAIL, w)
        self.norms = [normal(rng, dtype, w) for _ in range(3)]
        self.taps = normal(rng, "float32", KERNEL, w, scale=0.5)

    def run(self, begin: int, end: int, conv: Array | None = None) -> list[Array]:
        at = slice(begin, end)
        return native.ple(
            self.x[at], self.key[at], self.value[at], self.conv if conv is None else conv, self.norms, self.taps,
            self.streams, DILATION, EPS,
        ).run()  # fmt: skip


@pytest.mark.parametrize("n", [1, 4, 30])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_and_state(dtype: str, shape: str, n: int) -> None:
    p, rnd = Layer(dtype, shape, n), rounding(dtype)
    added, normed, conv = p.run(0, n)
    rows = map(wide, (p.key, p.value, p.x, *p.norms))
    g, want = naive.gate(*rows, p.streams, EPS, rnd)
    close(normed, want, ulps=4)
    history = np.concatenate([wide(p.conv), wide(normed)])
    close(added, naive.conv(g, history, wide(p.taps), DILATION, rnd), ulps=4)
    same_bits([conv], [np.concatenate([p.conv, normed])[-TAIL:]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_split_gives_the_same_bits(dtype: str) -> None:
    n = 25
    p = Layer(dtype, "demo", n)
    whole = invariant(lambda: p.run(0, n))
    for cuts in ([1] * n, [8, 8, 8, 1], [2, 23]):
        conv, parts, at = p.conv, [], 0
        for m in cuts:
            added, normed, conv = p.run(at, at + m, conv)
            parts.append((added, normed))
            at += m
        same_bits([*(np.concatenate(a) for a in zip(*parts, strict=True)), conv], whole)


def test_a_zero_product_gates_at_one_half() -> None:
    """sign(0) = 0: the gate is sigmoid(0), not sigmoid of the floor's root."""
    p = Layer("float32", "demo", 1)
    p.key[:] = 0
    p.taps[:] = 0
    added, _, _ = p.run(0, 1)
    same_bits([added.reshape(4, -1)], [np.repeat(p.value * np.float32(0.5), 4, 0)])
