"""csrc/kernels/gdn.cpp against tests/oracle/naive_gdn.py."""

import numpy as np
import pytest
from kernels.launch import DTYPES, Array, close, invariant, native, normal, rounding, rows_alone, same_bits, wide

from oracle import naive_gdn as naive

EPS = 1e-6
KERNEL = 4
# Hk, Hv, Dk, Dv
SHAPES = {"demo": (2, 4, 128, 128), "released": (16, 48, 128, 128), "ragged": (1, 3, 48, 33)}


class Layer:
    """Random weights, states and rows of one shape."""

    def __init__(self, dtype: str, shape: str, n: int) -> None:
        rng = np.random.default_rng(n)
        hk, hv, dk, dv = SHAPES[shape]
        ch = 2 * hk * dk + hv * dv
        self.dims = (hk, dk, hv, dv)
        self.taps = normal(rng, "float32", KERNEL, ch, scale=0.5)
        self.rate = np.exp(normal(rng, "float32", hv))
        self.dt_bias, self.norm = normal(rng, dtype, hv), normal(rng, dtype, dv)
        self.w = native.GdnWeights(self.taps, self.rate, self.dt_bias, self.norm, hk, hv, dk, dv, EPS)
        self.qkv, self.z = normal(rng, dtype, n, ch), normal(rng, dtype, n, hv * dv)
        self.a, self.b = normal(rng, dtype, n, hv), normal(rng, dtype, n, hv)
        self.conv, self.delta = normal(rng, dtype, KERNEL - 1, ch), normal(rng, "float32", hv, dv, dk)

    def run(self, begin: int, end: int, states: tuple[Array, Array] | None = None) -> list[Array]:
        conv, delta = states or (self.conv, self.delta)
        at = slice(begin, end)
        return native.gdn(self.qkv[at], self.a[at], self.b[at], self.z[at], conv, delta, self.w).run()


@pytest.mark.parametrize("n", [1, 2, 6, 40])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_and_states(dtype: str, shape: str, n: int) -> None:
    layer, rnd = Layer(dtype, shape, n), rounding(dtype)
    hk, dk, hv, dv = layer.dims
    y, conv, delta = layer.run(0, n)
    q, k, v, g, beta = naive.inputs(
        *map(wide, (layer.qkv, layer.a, layer.b, layer.conv)),
        wide(layer.taps),
        wide(layer.rate),
        wide(layer.dt_bias),
        hk,
        dk,
        hv,
        dv,
        rnd,
    )
    out, state = naive.steps(q, k, v, g, beta, wide(layer.delta))
    want = naive.gated_norm(rnd(out), wide(layer.z).reshape(n, hv, dv), wide(layer.norm), EPS, rnd)
    # A bf16 input that rounds the other way moves the state by 2^-8 of one update; o and its norm round again.
    np.testing.assert_allclose(delta, state, atol=(1e-5 if dtype == "float32" else 2**-7) * np.abs(state).max())
    if dtype == "float32":
        np.testing.assert_allclose(y, want, atol=2e-5 * np.abs(want).max())
    else:
        close(y, want, ulps=8)
    same_bits([conv], [np.concatenate([layer.conv, layer.qkv])[-(KERNEL - 1) :]])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_split_gives_the_same_bits(dtype: str, shape: str) -> None:
    """Rows one by one, in pieces, or at once: outputs and states agree bit for bit, as do the commits."""
    n = 9
    layer = Layer(dtype, shape, n)
    whole = layer.run(0, n)
    for cuts in ([1] * n, [2, 7], [4, 1, 4]):
        states, ys, at = (layer.conv, layer.delta), [], 0
        for m in cuts:
            y, *states = layer.run(at, at + m, tuple(states))
            ys.append(y)
            at += m
        same_bits([np.concatenate(ys), *states], whole)
    for keep in range(n + 1):
        committed = native.gdn_commit(layer.qkv, layer.a, layer.b, keep, layer.conv, layer.delta, layer.w).run()
        same_bits(committed, layer.run(0, keep)[1:] if keep else [layer.conv, layer.delta])


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_instruction_sets_change_nothing(dtype: str) -> None:
    layer = Layer(dtype, "demo", 20)
    invariant(lambda: layer.run(0, 20))
    invariant(lambda: layer.run(0, 1))


def test_rows_of_a_launch_are_those_of_single_launches_from_the_same_state() -> None:
    layer = Layer("float32", "demo", 1)
    layer.qkv, layer.z = np.repeat(layer.qkv, 4, 0), np.repeat(layer.z, 4, 0)
    layer.a, layer.b = np.repeat(layer.a, 4, 0), np.repeat(layer.b, 4, 0)
    first = layer.run(0, 1)[0]
    rows_alone(lambda b, e: [layer.run(0, e)[0][b:e]], 4)
    same_bits([layer.run(0, 4)[0][:1]], [first])
