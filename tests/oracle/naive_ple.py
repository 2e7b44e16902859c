"""The n-gram layer behind its projections in float64; model.md 10.2 and 13."""

from collections.abc import Callable

import numpy as np

from .naive_hyper import norm

Array = np.ndarray
Round = Callable[[Array], Array]


def gate(
    key: Array,
    value: Array,
    x: Array,
    norm_key: Array,
    norm_query: Array,
    norm_conv: Array,
    count: int,
    eps: float,
    rnd: Round,
) -> tuple[Array, Array]:
    """The gated values [n, count*H] and their norm."""
    n, hidden = value.shape
    products = rnd(norm(key, norm_key, count, eps, rnd) * norm(x, norm_query, count, eps, rnd))
    s = rnd(products.reshape(n, count, hidden).sum(-1) / np.sqrt(hidden))
    s = np.sign(s) * rnd(np.sqrt(np.maximum(np.abs(s), rnd(np.array(1e-6)))))
    gated = rnd(rnd(1.0 / (1.0 + np.exp(-s)))[:, :, None] * value[:, None, :]).reshape(n, -1)
    return gated, norm(gated, norm_conv, count, eps, rnd)


def conv(gated: Array, history: Array, w: Array, dilation: int, rnd: Round) -> Array:
    """gated + silu(conv) over `history`: the past rows, then these rows, normalised."""
    past = (len(w) - 1) * dilation
    total = np.zeros_like(gated)
    for t in range(len(gated)):
        for j in range(len(w)):
            total[t] += w[j] * history[t + past - dilation * (len(w) - 1 - j)]
    total = rnd(total)
    total = rnd(total * rnd(1.0 / (1.0 + np.exp(-total))))
    return rnd(gated + total)
