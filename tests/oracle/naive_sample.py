"""Candidates and normaliser of a logits row, by sorting and in float64, and the draw from them; decode.md 1.4 and 2."""

import numpy as np

Array = np.ndarray


def candidates(s: Array, m: int) -> Array:
    """Ids of the m largest values, lower ids first among equal ones, ascending."""
    return np.sort(np.lexsort((np.arange(len(s)), -s))[:m])


def normaliser(s: Array) -> tuple[float, float]:
    """The largest value and the sum of exp(s - largest)."""
    wide = s.astype(np.float64)
    return wide.max(), np.exp(wide - wide.max()).sum()


def sample(s: Array, m: int) -> tuple[Array, Array, Array, Array]:
    """The m largest of scaled rows [n, V], their ids, [n, 1] values equal to the smallest, [n, 2] normaliser."""
    ids = np.array([candidates(row, m) for row in s], np.int32)
    top = np.take_along_axis(s, ids, -1)
    ties = (s == top.min(-1, keepdims=True)).sum(-1, keepdims=True)
    return top, ids, ties, np.array([normaliser(row) for row in s])


def law(top: Array, ids: Array, exp_sum: float, k: int, top_p: float) -> tuple[Array, Array]:
    """Ids, ascending, that the k best and then the nucleus keep, and their cumulative mass in parts of all."""
    order = np.lexsort((ids, -top))[:k]
    mass = np.exp(top[order].astype(np.float64) - top.max())
    if top_p < 1:
        mass = mass[np.cumsum(mass) - mass < top_p * exp_sum]
    kept = ids[order[: len(mass)]]
    by_id = np.argsort(kept)
    return kept[by_id], np.cumsum(mass[by_id]) / mass.sum()


def pick(top: Array, ids: Array, exp_sum: float, k: int, top_p: float, u: float) -> int:
    """The token that the uniform u draws."""
    kept, edges = law(top, ids, exp_sum, k, top_p)
    return int(kept[min(np.searchsorted(edges, u, side="right"), len(kept) - 1)])


def middles(edges: Array) -> Array:
    """A uniform amid each token's share."""
    return (edges + np.concatenate([[0.0], edges[:-1]])) / 2
