"""Router and expert sum, sorted and added as the contract says; model.md 9."""

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Round = Callable[[Array], Array]


def route(logits: Array, k: int, rnd: Round) -> tuple[Array, Array, Array]:
    """Expert ids and weights [n, k], and the pairs sorted by expert."""
    e = np.exp(logits - logits.max(-1, keepdims=True))
    p = rnd(e / e.sum(-1, keepdims=True))
    ids = np.array([sorted(range(p.shape[1]), key=lambda i: (row[i], i))[-k:] for row in p])
    kept = np.take_along_axis(p, ids, -1)
    total = np.zeros(len(p))
    for rank in range(k):
        total = rnd(total + kept[:, rank])
    order = sorted(range(ids.size), key=lambda pair: (ids.ravel()[pair], pair))
    return ids, rnd(kept / total[:, None]), np.array(order)


def combine(y: Array, shared: Array, gate: Array, k: int, rnd: Round) -> Array:
    """Eight partial sums of weighted experts [n*k, H], then the gated shared expert."""
    weighted = y.reshape(len(shared), k, -1)
    partial = [weighted[:, rank] for rank in range(min(k, 8))]
    for rank in range(8, k):
        partial[rank % 8] = rnd(partial[rank % 8] + weighted[:, rank])
    total = partial[0]
    for p in partial[1:]:
        total = rnd(total + p)
    return rnd(total + rnd(rnd(1.0 / (1.0 + np.exp(-gate))) * shared))
