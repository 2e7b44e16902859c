"""Matrices times rows in float64, affine codes unpacked bit by bit; model.md 3.2 and 9."""

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Round = Callable[[Array], Array]


def codes(words: Array, bits: int) -> Array:
    """[..., in] of packed uint32 words, low bits first."""
    stream = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    return np.asarray(stream.reshape(*words.shape[:-1], -1, bits) @ (1 << np.arange(bits)))


def affine(words: Array, scales: Array, biases: Array, bits: int) -> Array:
    """[..., out, in] float64 of packed uint32 codes."""
    code = codes(words, bits)
    group = code.shape[-1] // scales.shape[-1]
    scale, bias = np.repeat(scales, group, -1), np.repeat(biases, group, -1)
    return np.asarray(scale.astype(np.float64) * code + bias)


def silu(v: Array, rnd: Round) -> Array:
    """v * sigmoid(v), the sigmoid rounded first."""
    return rnd(v * rnd(1.0 / (1.0 + np.exp(-v))))


def plain(x: Array, w: Array, n_silu: int, div: int, rnd: Round) -> Array:
    """rnd(w x) / div, the first n_silu outputs through silu."""
    y = rnd(rnd(x @ w.T) / div)
    y[:, :n_silu] = silu(y[:, :n_silu], rnd)
    return y


def glu(x: Array, gate: Array, up: Array, rnd: Round) -> Array:
    """silu(gate x) * (up x)."""
    return rnd(silu(rnd(x @ gate.T), rnd) * rnd(x @ up.T))
