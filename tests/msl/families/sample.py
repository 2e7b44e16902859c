"""Cases of metal/sample.metal."""

from collections.abc import Sequence

import numpy as np
from msl.harness.case import Array, Case, normal
from msl.harness.spec import load

from oracle import naive_sample as naive

KERNELS = load("sample")
SCALE = np.float32(1 / 0.6)


def scaled(logits: Array) -> Array:
    return logits.astype(np.float32) * SCALE


def chunks(s: Array, m: int, chunk: int) -> Sequence[Array]:
    """What sample_chunks says about scaled rows [rows, V]."""
    rows, n = len(s), -(-s.shape[1] // chunk)
    value, ids = np.full((rows, n, m), -np.inf, np.float32), np.full((rows, n, m), -1, np.int32)
    stat, unchosen = np.zeros((rows, n, 3)), np.zeros((rows, n), np.int32)
    for r in range(rows):
        for i in range(n):
            part = s[r, i * chunk : (i + 1) * chunk]
            top = naive.candidates(part, m)
            value[r, i, : len(top)], ids[r, i, : len(top)] = part[top], top + i * chunk
            cut = part[top].min()
            wide = part.astype(np.float64)
            stat[r, i] = part.max(), np.exp(wide - wide.max()).sum(), cut
            unchosen[r, i] = (part == cut).sum() - (part[top] == cut).sum()
    return value, ids, stat, unchosen


def logits(rng: np.random.Generator, dtype: str, rows: int, vocab: int, tied: bool) -> Array:
    """`tied`: the largest value is zero, of either sign, many times."""
    x = normal(rng, dtype, rows, vocab, scale=3.0)
    if tied:
        x = np.round(x.astype(np.float32)).astype(x.dtype)
        x[x > 0] = 0
    return x


def chunks_case(shape: str, dtype: str, rows: int, vocab: int, m: int, chunk: int, tied: bool = False) -> Case:
    def build(rng: np.random.Generator) -> list[Array]:
        return [logits(rng, dtype, rows, vocab, tied), np.array([SCALE], np.float32)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        return chunks(scaled(arrays[0]), m, chunk)

    name = f"{shape}-{rows}rows{m}of{vocab}" + "-tied" * tied
    template = {"T": dtype, "V": vocab, "M": m, "CHUNK": chunk}
    return Case(KERNELS["sample_chunks"], name, template, build, oracle)


def row_case(shape: str, rows: int, vocab: int, m: int, chunk: int, tied: bool = False) -> Case:
    """Its inputs are what sample_chunks hands on."""

    def build(rng: np.random.Generator) -> list[Array]:
        parts = chunks(scaled(logits(rng, "bfloat16", rows, vocab, tied)), m, chunk)
        return [a.astype(np.float32) if a.dtype == np.float64 else a for a in parts]

    def oracle(_: Sequence[Array]) -> Sequence[Array]:
        rows_of = scaled(logits(np.random.default_rng(7), "bfloat16", rows, vocab, tied))
        ids = np.array([naive.candidates(s, m) for s in rows_of])
        top = np.take_along_axis(rows_of, ids, -1)
        ties = (rows_of == top.min(-1, keepdims=True)).sum(-1, keepdims=True)
        best = rows_of.argmax(-1)[:, None]
        return top, ids, ties, best, np.array([[naive.logsumexp(s)] for s in rows_of])

    name = f"{shape}-{rows}rows{m}of{vocab}" + "-tied" * tied
    return Case(KERNELS["sample_row"], name, {"CHUNKS": -(-vocab // chunk), "M": m}, build, oracle)


CASES = [
    chunks_case("demo", "bfloat16", 2, 4096, 80, 4096),
    chunks_case("demo", "float32", 2, 4096, 80, 4096, tied=True),
    chunks_case("ragged", "float32", 2, 700, 9, 300),
    chunks_case("ragged", "float32", 1, 605, 9, 300, tied=True),
    chunks_case("released", "bfloat16", 1, 248320, 80, 4096),
    row_case("demo", 2, 4096, 80, 4096),
    row_case("ragged", 2, 9700, 9, 300, tied=True),
    row_case("ragged", 3, 700, 9, 300),
    row_case("released", 1, 248320, 80, 4096, tied=True),
]
