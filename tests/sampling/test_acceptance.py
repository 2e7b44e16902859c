"""Acceptance keeps the law: exact marginals of the per-token and of the block coins."""

from itertools import product
from typing import Any

import _qwenmtp_testing as core
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB = 4


def distribution(weights: list[float]) -> Any:
    w = np.array(weights)
    ids = np.flatnonzero(w > 0)
    return core.Distribution(ids.tolist(), (w[ids] / w.sum()).tolist())


def dense(dist: Any) -> np.ndarray:
    out = np.zeros(VOCAB)
    out[dist.ids] = dist.mass
    return out


# Few distinct weights, zeros among them: supports differ and ratios hit 0 and 1.
rows = (
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0, 2.0]), min_size=VOCAB, max_size=VOCAB).filter(any).map(distribution)
)


def test_worked_example() -> None:
    p, q = core.Distribution([0, 1, 2], [0.5, 0.3, 0.2]), core.Distribution([0, 1, 2, 5], [0.2, 0.6, 0.1, 0.1])
    assert [core.acceptance_probability(p, q, t) for t in (0, 1, 2, 5)] == [1.0, 0.5, 1.0, 0.0]
    left = core.residual(p, q)
    assert left.ids == [0, 2]
    assert np.allclose(left.mass, [0.75, 0.25])


@given(rows, rows)
def test_one_draft_then_the_residual_is_exactly_p(p: Any, q: Any) -> None:
    target, proposal = dense(p), dense(q)
    out = np.zeros(VOCAB)
    for token in range(VOCAB):
        a = core.acceptance_probability(p, q, token)
        out[token] += proposal[token] * a
        if a < 1:
            out += proposal[token] * (1 - a) * dense(core.residual(p, q))
    assert np.allclose(out, target, atol=1e-12)  # sums of four float64 products


def test_a_point_mass_residual_is_p_without_the_token() -> None:
    p = core.Distribution([1, 2, 3], [0.5, 0.25, 0.25])
    left = core.residual(p, core.Distribution([2], [1.0]))
    assert left.ids == [1, 3]
    assert np.allclose(left.mass, [2 / 3, 1 / 3])
    assert core.residual(core.Distribution([2], [1.0]), core.Distribution([2], [1.0])).ids == [2]


def test_dense_and_sparse_rows_mix() -> None:
    sparse, whole = core.Distribution([1, 2], [0.5, 0.5]), core.Distribution([], [0.25, 0.25, 0.25, 0.25])
    assert core.acceptance_probability(sparse, whole, 1) == 1.0
    assert core.acceptance_probability(whole, sparse, 1) == 0.5
    assert core.acceptance_probability(whole, sparse, 0) == 1.0
    assert np.allclose(core.residual(sparse, whole).mass, [0, 0.5, 0.5, 0])
    assert np.allclose(core.residual(whole, sparse).mass, [0.5, 0, 0, 0.5])


def block_marginal(
    p: dict[tuple[int, ...], Any], q: dict[tuple[int, ...], Any], depth: int
) -> dict[tuple[int, ...], float]:
    """Law of the accepted prefix and its correction, over every draft path."""
    law: dict[tuple[int, ...], float] = {}
    for path in product(range(VOCAB), repeat=depth):
        weight = float(np.prod([dense(q[path[:d]])[path[d]] for d in range(depth)]))
        if weight == 0:
            continue
        verifier = core.BlockVerifier(
            [p[path[:d]] for d in range(depth)], [q[path[:d]] for d in range(depth)], list(path)
        )
        for d in range(depth):
            coin = verifier.coin(d)
            if coin < 1:
                for token, mass in enumerate(dense(verifier.residual(d))):
                    law[(*path[:d], token)] = law.get((*path[:d], token), 0.0) + weight * (1 - coin) * mass
            weight *= coin
        law[path] = law.get(path, 0.0) + weight
    return law


def completed(
    law: dict[tuple[int, ...], float], p: dict[tuple[int, ...], Any], depth: int
) -> dict[tuple[int, ...], float]:
    """Every sequence extended to `depth` tokens with plain target samples."""
    out: dict[tuple[int, ...], float] = {}
    for prefix, weight in law.items():
        for tail in product(range(VOCAB), repeat=depth - len(prefix)):
            path = (*prefix, *tail)
            mass = weight * float(np.prod([dense(p[path[:d]])[path[d]] for d in range(len(prefix), depth)]))
            out[path] = out.get(path, 0.0) + mass
    return out


@given(st.data(), st.sampled_from([1, 2, 3]))
@settings(max_examples=15, deadline=None)
def test_block_coins_keep_the_law_of_whole_sequences(data: st.DataObject, depth: int) -> None:
    prefixes = [x for d in range(depth) for x in product(range(VOCAB), repeat=d)]
    palette = [(data.draw(rows), data.draw(rows)) for _ in range(5)]
    p = {x: palette[(7 * i) % 5][0] for i, x in enumerate(prefixes)}
    q = {x: palette[(3 * i + 1) % 5][1] for i, x in enumerate(prefixes)}
    got = completed(block_marginal(p, q, depth), p, depth)
    for path in product(range(VOCAB), repeat=depth):
        want = float(np.prod([dense(p[path[:d]])[path[d]] for d in range(depth)]))
        assert abs(got.get(path, 0.0) - want) < 1e-9  # products of a few float64 masses
