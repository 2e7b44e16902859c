"""Candidates and normaliser of a logits row, by sorting and in float64; decode.md 1.4."""

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
