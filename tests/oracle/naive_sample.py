"""Candidates of a logits row by sorting; decode.md 1.4."""

import numpy as np

Array = np.ndarray


def candidates(s: Array, m: int) -> Array:
    """Ids of the m largest values, lower ids first among equal ones, ascending."""
    return np.sort(np.lexsort((np.arange(len(s)), -s))[:m])


def logsumexp(s: Array) -> float:
    """log(sum(exp(s))) in float64."""
    wide = s.astype(np.float64)
    return float(wide.max() + np.log(np.exp(wide - wide.max()).sum()))
