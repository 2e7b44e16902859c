"""Hyper connections in float64; model.md 6 and 13."""

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Round = Callable[[Array], Array]


def norm(x: Array, w: Array, count: int, eps: float, rnd: Round) -> Array:
    """RMS norm of each of `count` streams of x [n, count*H]; w is one-centred."""
    streams = x.reshape(len(x), count, -1)
    unit = rnd(streams / np.sqrt((streams**2).mean(-1, keepdims=True) + eps))
    return rnd(unit * w.reshape(count, -1)).reshape(x.shape)


def write(x: Array, y: Array, g: Array, rnd: Round) -> Array:
    """x[s] += g[s] * y."""
    streams = x.reshape(len(x), g.shape[1], -1)
    return rnd(streams + rnd(g[:, :, None] * y[:, None, :])).reshape(x.shape)


def mix(z: Array, up: Array, count: int, rnd: Round) -> Array:
    """Mean over streams of sigmoid(up) * z, streams in order."""
    parts = rnd(rnd(1.0 / (1.0 + np.exp(-up))) * z).reshape(len(z), count, -1)
    total = parts[:, 0]
    for s in range(1, count):
        total = rnd(total + parts[:, s])
    return rnd(total / count)


def inject(low: Array, rnd: Round) -> Array:
    """Scale of the write-back from B z / C."""
    return rnd(2.0 * rnd(1.0 / (1.0 + np.exp(-low))))
