"""Cases of metal/sample.metal."""

from collections.abc import Sequence

import numpy as np
from msl.harness.case import Array, Case, normal
from msl.harness.spec import load

from oracle import naive_sample as naive

KERNELS = load("sample")
SCALE = np.float32(1 / 0.6)
BLOCK = 512


def scaled(logits: Array) -> Array:
    return logits.astype(np.float32) * SCALE


def chunks(s: Array, m: int, chunk: int) -> Sequence[Array]:
    """What sample_chunks says about scaled rows [rows, V]."""
    rows, n = len(s), -(-s.shape[1] // chunk)
    value, ids = np.full((rows, n, m), -np.inf, np.float32), np.full((rows, n, m), -1, np.int32)
    cut, unchosen = np.zeros((rows, n)), np.zeros((rows, n), np.int32)
    for r in range(rows):
        for i in range(n):
            part = s[r, i * chunk : (i + 1) * chunk]
            top = naive.candidates(part, m)
            value[r, i, : len(top)], ids[r, i, : len(top)] = part[top], top + i * chunk
            cut[r, i] = part[top].min()
            unchosen[r, i] = (part == cut[r, i]).sum() - (part[top] == cut[r, i]).sum()
    parts = [[s[r, b : b + BLOCK] for b in range(0, s.shape[1], BLOCK)] for r in range(rows)]
    block = np.array([[naive.normaliser(p) for p in row] for row in parts])
    return value, ids, cut, unchosen, block


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
        return naive.sample(scaled(logits(np.random.default_rng(7), "bfloat16", rows, vocab, tied)), m)

    name = f"{shape}-{rows}rows{m}of{vocab}" + "-tied" * tied
    return Case(
        KERNELS["sample_row"], name, {"CHUNKS": -(-vocab // chunk), "BLOCKS": -(-vocab // BLOCK), "M": m}, build, oracle
    )


def pick_case(shape: str, vocab: int, m: int, k: int, top_p: float, at: int = 0) -> Case:
    """Amid the share of the at-th token that is kept, where float32 draws as float64 does."""

    def build(rng: np.random.Generator) -> list[Array]:
        top, ids, _, total = naive.sample(scaled(logits(rng, "bfloat16", 1, vocab, tied=False)), m)
        _, edges = naive.law(top[0], ids[0], total[0, 1], k, top_p)
        u = naive.middles(edges)[at]
        values = np.array([k], np.int32), np.array([top_p], np.float32), np.array([u], np.float32)
        return [top, ids, total.astype(np.float32), *values]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        top, ids, total, k, top_p, u = arrays
        return [np.array([naive.pick(top[0], ids[0], total[0, 1], int(k[0]), float(top_p[0]), float(u[0]))])]

    return Case(KERNELS["sample_pick"], f"{shape}-{k}of{m}", {"M": m}, build, oracle)


CASES = [
    chunks_case("demo", "bfloat16", 2, 4096, 32, 4096),
    chunks_case("demo", "float32", 2, 4096, 32, 4096, tied=True),
    chunks_case("ragged", "float32", 2, 1700, 9, 1024),
    chunks_case("ragged", "float16", 1, 1029, 9, 512, tied=True),
    chunks_case("released", "bfloat16", 1, 248320, 32, 4096),
    row_case("demo", 2, 4096, 32, 4096),
    row_case("ragged", 2, 17000, 9, 512, tied=True),
    row_case("ragged", 3, 700, 9, 512),
    row_case("released", 1, 248320, 32, 4096, tied=True),
    pick_case("demo", 4096, 32, 20, 0.95, at=2),
    pick_case("ragged", 1029, 9, 5, 1.0, at=-1),
    pick_case("ragged", 1029, 40, 33, 0.5),
    pick_case("released", 248320, 512, 500, 0.95, at=7),
]
