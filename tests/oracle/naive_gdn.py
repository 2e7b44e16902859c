"""Gated DeltaNet in float64, one value at a time; model.md 7 and 13."""

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Round = Callable[[Array], Array]  # to the model's type and back to float64


def sigmoid(v: Array) -> Array:
    """1 / (1 + e^-v)."""
    return 1.0 / (1.0 + np.exp(-v))


def inputs(
    qkv: Array,
    a: Array,
    b: Array,
    tail: Array,
    conv_w: Array,
    decay_rate: Array,
    dt_bias: Array,
    hk: int,
    dk: int,
    hv: int,
    dv: int,
    rnd: Round,
) -> tuple[Array, Array, Array, Array, Array]:
    """q, k [T,hk,dk], v [T,hv,dv], g, beta [T,hv] of rows that follow `tail`."""
    taps = len(conv_w)
    history = np.concatenate([tail, qkv])
    c = np.zeros_like(qkv)
    for t in range(len(qkv)):
        for j in range(taps):
            c[t] += conv_w[j] * history[t + j]
    c = rnd(c)
    c = rnd(c * rnd(sigmoid(c)))
    q, k, v = np.split(c, [hk * dk, 2 * hk * dk], axis=1)
    q, k, v = q.reshape(-1, hk, dk), k.reshape(-1, hk, dk), v.reshape(-1, hv, dv)

    def unit(x: Array) -> Array:
        return rnd(x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6))

    q = rnd(unit(q) * rnd(np.array(dk**-0.5)))
    softplus = rnd(np.logaddexp(0.0, rnd(a + dt_bias)))
    return q, unit(k), v, np.exp(-decay_rate * softplus), rnd(sigmoid(b))


def steps(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    """Outputs [T,hv,dv] and the state [hv,dv,dk] after the last row."""
    s = state.copy()
    group = v.shape[1] // k.shape[1]
    out = np.zeros_like(v)
    for t in range(len(v)):
        for h in range(v.shape[1]):
            kt, qt = k[t, h // group], q[t, h // group]
            s[h] *= g[t, h]
            s[h] += np.outer(beta[t, h] * (v[t, h] - s[h] @ kt), kt)
            out[t, h] = s[h] @ qt
    return out, s


def gated_norm(o: Array, z: Array, w: Array, eps: float, rnd: Round) -> Array:
    """[T,hv,dv] -> [T,hv*dv]; `o` is already rounded."""
    n = rnd(o / np.sqrt((o * o).mean(-1, keepdims=True) + eps))
    return rnd(rnd(n * w) * sigmoid(z)).reshape(len(o), -1)
