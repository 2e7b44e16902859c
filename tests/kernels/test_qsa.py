"""csrc/kernels/qsa.cpp against tests/oracle/naive_qsa.py."""

import numpy as np
import pytest
from kernels.launch import (
    DTYPES,
    Array,
    close,
    invariant,
    native,
    normal,
    rounding,
    rows_alone,
    same_bits,
    stored,
    wide,
)

from oracle import naive_qsa as naive
from qwenmtp.errors import InvalidRequest

EPS = 1e-6
# Hq, Hkv, D, Hi, Di, ratio, budget blocks, half
SHAPES = {
    "demo": (6, 2, 256, 4, 128, 4, 64, 32),
    "released": (24, 2, 256, 4, 128, 4, 512, 32),
    "ragged": (3, 1, 40, 2, 24, 3, 5, 7),
}


class Layer:
    """Random weights of one shape, and caches of `past` tokens."""

    def __init__(self, dtype: str, shape: str, past: int = 0, n: int = 1) -> None:
        self.rng = rng = np.random.default_rng(past + n)
        self.hq, self.hkv, self.d, self.hi, self.di, self.ratio, self.budget, self.half = SHAPES[shape]
        self.dtype, self.past, self.n = dtype, past, n
        self.norms = [normal(rng, dtype, size) for size in (self.d, self.d, self.di, self.di)]
        self.w = native.QsaWeights(*self.norms, self.hq, self.hkv, self.hi, self.ratio, self.budget, EPS)
        self.q_gate = normal(rng, dtype, n, self.hq * 2 * self.d)

    def caches(self) -> None:
        rng, total = self.rng, self.past + self.n
        self.q, self.iq = (normal(rng, self.dtype, self.n, h) for h in (self.hq * self.d, self.hi * self.di))
        self.keys, self.values = (normal(rng, self.dtype, self.hkv, total + 3, self.d) for _ in range(2))
        self.pooled = normal(rng, self.dtype, total // self.ratio + 1, self.di)

    def attend(self, begin: int, end: int) -> list[Array]:
        at = slice(begin, end)
        return native.qsa_attend(
            self.q[at], self.q_gate[at], self.iq[at], self.keys, self.values, self.pooled, self.past + begin, self.w
        ).run()


def angles(rng: np.random.Generator, n: int, half: int) -> tuple[Array, Array]:
    a = rng.uniform(0, 7, (n, half))
    return np.cos(a).astype(np.float32), np.sin(a).astype(np.float32)


@pytest.mark.parametrize(("tail", "n"), [(0, 1), (2, 1), (1, 9), (0, 60)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_prepare(dtype: str, shape: str, tail: int, n: int) -> None:
    x, rnd = Layer(dtype, shape, n=n), rounding(dtype)
    rng, blocks = x.rng, (tail + n) // x.ratio
    k, v = (normal(rng, dtype, n, x.hkv * x.d) for _ in range(2))
    index, raw_tail = normal(rng, dtype, n, (x.hi + 1) * x.di), normal(rng, dtype, tail, x.di)
    at, of = angles(rng, n, x.half), angles(rng, blocks, x.half)

    def run(begin: int, end: int) -> list[Array]:
        s = slice(begin, end)
        first = (tail + begin) // x.ratio
        raw = np.concatenate([raw_tail, index[:begin, x.hi * x.di :]])[first * x.ratio :]
        m = (tail + end) // x.ratio - first
        return native.qsa_prepare(
            x.q_gate[s], k[s], v[s], index[s], raw, at[0][s], at[1][s], of[0][first : first + m],
            of[1][first : first + m], x.w,
        ).run()  # fmt: skip

    k_out, v_out, raw, pooled, q, iq = run(0, n)
    wq, wk, wiq, wik = map(wide, x.norms)
    cos, sin = map(wide, at)
    want_q = wide(x.q_gate).reshape(n, x.hq, 2, x.d)[:, :, 0]
    # rms rounds twice and the rotation mixes two rounded values
    close(q, naive.rope(naive.rms(want_q, wq, EPS, rnd), cos, sin, rnd).reshape(n, -1), ulps=3)
    want_k = naive.rope(naive.rms(wide(k).reshape(n, x.hkv, x.d), wk, EPS, rnd), cos, sin, rnd)
    close(k_out, want_k.transpose(1, 0, 2), ulps=3)
    same_bits([v_out], [np.ascontiguousarray(v.reshape(n, x.hkv, x.d).transpose(1, 0, 2))])
    iqs = wide(index)[:, : x.hi * x.di].reshape(n, x.hi, x.di)
    close(iq, naive.rope(naive.rms(iqs, wiq, EPS, rnd), cos, sin, rnd).reshape(n, -1), ulps=3)
    same_bits([raw], [np.ascontiguousarray(index[:, x.hi * x.di :])])
    rows = np.concatenate([raw_tail, index[:, x.hi * x.di :]])[: blocks * x.ratio]
    if blocks:
        close(pooled, naive.pool(wide(rows), wik, x.ratio, *map(wide, of), EPS, rnd), ulps=4)
    if n == 9:
        parts = [run(r, r + 1) for r in range(n)]
        same_bits([q, iq, raw], [np.concatenate([p[i] for p in parts]) for i in (4, 5, 2)])
        same_bits([k_out, v_out], [np.concatenate([p[i] for p in parts], 1) for i in (0, 1)])
        same_bits([pooled], [np.concatenate([p[3] for p in parts])])
        invariant(lambda: run(0, n))


@pytest.mark.parametrize(("past", "n"), [(0, 1), (2, 4), (0, 70), (300, 3), (2049, 2)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attend(dtype: str, shape: str, past: int, n: int) -> None:
    x, rnd = Layer(dtype, shape, past, n), rounding(dtype)
    x.caches()
    y, blocks = x.attend(0, n)
    keys, values, pooled = wide(x.keys), wide(x.values), wide(x.pooled)
    for i in range(n):
        position = past + i
        count = (position + 1) // x.ratio
        seen = blocks[i][blocks[i] >= 0]
        score = naive.scores(wide(x.iq)[i].reshape(x.hi, x.di), pooled[:count])
        assert len(seen) == min(count, x.budget)
        assert (np.diff(seen) > 0).all()
        if count > x.budget:
            # float32 sums may order near-equal scores otherwise; the rule itself is tested below
            assert score[seen].min() >= np.sort(score)[-x.budget] - 1e-4
        tokens = naive.visible(seen, position, x.ratio)
        gates = wide(x.q_gate)[i].reshape(x.hq, 2, x.d)[:, 1]
        want = naive.attend(wide(x.q)[i].reshape(x.hq, x.d), gates, keys, values, tokens, rnd)
        close(y[i], want, ulps=3)


@pytest.mark.parametrize(("count", "levels"), [(65, 3), (700, 3), (2500, 3), (700, 100), (2500, 3000), (8000, 100_000)])
def test_ranks_and_ties_are_exact(count: int, levels: int) -> None:
    """Scores on a grid, so float32 is exact: zeros keep the lowest ids; equal ranks keep the larger id, which needs
    the float32 subtraction that vanishes beside a score."""
    x = Layer("float32", "demo", past=4 * count - 1)
    x.caches()
    x.iq[:] = 0
    x.iq[:, [0, x.di, 2 * x.di]] = 1.0
    x.pooled[:] = 0
    x.pooled[:count, 0] = x.rng.integers(-levels, levels, count) if count > 65 else -1.0
    _, blocks = x.attend(0, 1)
    score = naive.scores(wide(x.iq).reshape(x.hi, x.di), wide(x.pooled)[:count])
    assert blocks[0].tolist() == naive.best_blocks(score, x.budget).tolist()


def test_zero_scores_keep_the_lowest_ids() -> None:
    x = Layer("float32", "demo", past=4 * 200 - 1)
    x.caches()
    x.pooled[:] = 0
    assert x.attend(0, 1)[1][0].tolist() == list(range(64))


def test_nothing_behind_a_row_is_read() -> None:
    x = Layer("float32", "demo", past=270, n=6)
    x.caches()
    want = x.attend(0, 2)
    x.keys[:, 272:], x.values[:, 272:], x.pooled[68:] = np.nan, np.nan, np.nan
    same_bits(x.attend(0, 2), want)


@pytest.mark.parametrize("past", [250, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: str, past: int) -> None:
    x = Layer(dtype, "demo", past, 25)
    x.caches()
    rows_alone(x.attend, 10)
    whole = invariant(lambda: x.attend(0, 25))
    same_bits([a[24:] for a in whole], x.attend(24, 25))
    invariant(lambda: x.attend(0, 1))


def test_rows_beyond_the_caches_are_refused() -> None:
    x = Layer("float32", "demo", past=10)
    x.caches()
    with pytest.raises(InvalidRequest, match=r"\[kernels.qsa_attend\] rows 14 to 15 with 14 keys"):
        native.qsa_attend(x.q, x.q_gate, x.iq, x.keys, x.values, x.pooled, 14, x.w).run()
    with pytest.raises(InvalidRequest, match="another dtype"):
        native.qsa_attend(x.q, stored(x.q_gate, "bfloat16"), x.iq, x.keys, x.values, x.pooled, 10, x.w).run()
