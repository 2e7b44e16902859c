"""csrc/kernels/moe.cpp against tests/oracle/naive_moe.py."""

from collections.abc import Callable

import numpy as np
import pytest
from kernels.launch import DTYPES, Array, close, invariant, native, normal, rounding, rows_alone, same_bits, wide

from oracle import naive_moe as naive
from oracle import naive_rows

# E, K, H, I, Is
SHAPES = {"demo": (16, 4, 256, 64, 128), "released": (24, 10, 640, 160, 160), "ragged": (5, 3, 37, 11, 7)}


def weights(rng: np.random.Generator, kind: str, shape: str) -> list[Array]:
    e, _, h, i, s = SHAPES[shape]
    dims = [(e, h), (e, i, h), (e, i, h), (e, h, i), (s, h), (s, h), (h, s), (1, h)]
    return [normal(rng, kind, *d, scale=d[-1] ** -0.5) for d in dims]


def launch(u: Array, w: list[Array], top_k: int) -> list[Array]:
    return native.moe(u, [(a,) for a in w], top_k).run()


def moe(u: Array, w: list[Array], top_k: int, rnd: Callable[[Array], Array]) -> tuple[Array, Array, Array]:
    """y, ids and weights in float64."""
    router, gate, up, down, s_gate, s_up, s_down, s_weight = w
    ids, weights, _ = naive.route(rnd(u @ router.T), top_k, rnd)
    slots = [(r, e) for r in range(len(u)) for e in ids[r]]
    y = [rnd(naive_rows.glu(u[r : r + 1], gate[e], up[e], rnd) @ down[e].T) for r, e in slots]
    weighted = rnd(np.concatenate(y) * weights.reshape(-1, 1))
    shared = rnd(naive_rows.glu(u, s_gate, s_up, rnd) @ s_down.T)
    return naive.combine(weighted, shared, rnd(u @ s_weight.T), top_k, rnd), ids, weights


@pytest.mark.parametrize("n", [1, 2, 50])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_moe(dtype: str, kind: str, shape: str, n: int) -> None:
    rng = np.random.default_rng(n)
    _, k, h, _, _ = SHAPES[shape]
    w = weights(rng, kind, shape)
    u = normal(rng, dtype, n, h, scale=2.0)
    y, ids, p = launch(u, w, k)
    want, own, own_p = moe(wide(u), [wide(a) for a in w], k, rounding(dtype))
    same = (ids == own).all(-1)
    if dtype == "float32":
        assert same.all()
    else:  # a logit that rounds the other way may swap near-equal experts
        assert same.mean() > 0.8
    close(p[same], own_p[same], ulps=4)
    close(y[same], want[same], ulps=8)


def test_ties_go_to_the_larger_id_and_sum_in_ascending_order() -> None:
    """Equal probabilities keep the largest ids; the kept are listed by (probability, id) ascending."""
    _, k, h, _, _ = SHAPES["demo"]
    w = weights(np.random.default_rng(0), "float32", "demo")
    w[0][:] = 0
    u = np.ones((1, h), np.float32)
    assert launch(u, w, k)[1].tolist() == [[12, 13, 14, 15]]
    w[0][3, 0] = w[0][7, 0] = 1.0
    w[0][5, 0] = 0.5
    assert launch(u, w, k)[1].tolist() == [[15, 5, 3, 7]]
    w[0][15, 0] = -1.0
    assert launch(u, w, k)[1].tolist() == [[14, 5, 3, 7]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: str) -> None:
    rng = np.random.default_rng(5)
    _, k, h, _, _ = SHAPES["demo"]
    w = weights(rng, "bfloat16", "demo")
    u = normal(rng, dtype, 120, h, scale=2.0)
    rows_alone(lambda b, e: launch(u[b:e], w, k), 10)
    many = invariant(lambda: launch(u, w, k))
    for r in range(0, 120, 7):
        same_bits([a[r : r + 1] for a in many], launch(u[r : r + 1], w, k))
    invariant(lambda: launch(u[:1], w, k))
