"""Sparse attention in float64, ranks in float32; model.md 8 and 13."""

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Round = Callable[[Array], Array]  # to the model's type and back to float64


def sigmoid(v: Array) -> Array:
    """1 / (1 + e^-v)."""
    return 1.0 / (1.0 + np.exp(-v))


def rms(v: Array, w: Array, eps: float, rnd: Round) -> Array:
    """v / sqrt(mean(v^2) + eps) over the last axis, rounded, times the effective weight."""
    return rnd(rnd(v / np.sqrt((v * v).mean(-1, keepdims=True) + eps)) * w)


def rope(v: Array, cos: Array, sin: Array, rnd: Round) -> Array:
    """v [n, heads, dim] rotated by cos, sin [n, half] in half-split pairs."""
    half = cos.shape[1]
    a, b, rest = v[..., :half], v[..., half : 2 * half], v[..., 2 * half :]
    c, s = cos[:, None, :], sin[:, None, :]
    return rnd(np.concatenate([a * c - b * s, b * c + a * s, rest], -1))


def pool(raw: Array, norm: Array, ratio: int, cos: Array, sin: Array, eps: float, rnd: Round) -> Array:
    """Keys [blocks, Di] of whole blocks of raw rows; cos, sin of each block's first token."""
    mean = rnd(raw.reshape(-1, ratio, raw.shape[-1]).mean(1))
    return rope(rms(mean, norm, eps, rnd)[:, None, :], cos, sin, rnd)[:, 0]


def scores(index_q: Array, pooled: Array) -> Array:
    """[blocks] of one row, index_q [Hi, Di]."""
    return np.maximum(index_q @ pooled.T, 0.0).sum(0) / np.float64(np.float32(np.sqrt(np.float32(index_q.shape[1]))))


def best_blocks(score: Array, keep: int) -> Array:
    """Ascending ids of the `keep` largest float32 ranks; the larger id among equals."""
    rank = score.astype(np.float32) - np.arange(len(score), dtype=np.float32) * np.float32(1e-12)
    return np.sort(np.argsort(rank, kind="stable")[-keep:])


def visible(blocks: Array, position: int, ratio: int) -> Array:
    """Token ids: those of `blocks`, then the incomplete block's."""
    tail = np.arange((position + 1) // ratio * ratio, position + 1)
    return np.concatenate([(blocks[:, None] * ratio + np.arange(ratio)).ravel(), tail])


def attend(q: Array, gate: Array, keys: Array, values: Array, tokens: Array, rnd: Round) -> Array:
    """One row: q, gate [Hq, D], keys, values [Hkv, T, D] -> [Hq * D]."""
    group = len(q) // len(keys)
    out = []
    for h, row in enumerate(q):
        dots = keys[h // group][tokens] @ row / np.sqrt(len(row))
        p = np.exp(dots - dots.max())
        out.append(rnd(p @ values[h // group][tokens] / p.sum()))
    return np.concatenate([rnd(o * rnd(sigmoid(g))) for o, g in zip(out, gate, strict=True)])
