"""Cases of metal/qsa.metal."""

from collections.abc import Sequence

import numpy as np
from msl.harness.case import Array, Case, normal, rounding, wide
from msl.harness.spec import load

from oracle import naive_qsa as naive

KERNELS = load("qsa")
EPS = np.array([1e-6], np.float32)
D, DI, NI, RATIO = 256, 128, 4, 4
PART = 32  # visible tokens of one part of qsa_attend

# HQ, HKV, K
GEOMETRY = {"demo": (6, 2, 64), "ragged": (4, 2, 5), "released": (24, 2, 512)}
RD = {"demo": 64, "ragged": 32, "released": 64}


def scalar(v: int) -> Array:
    return np.array([v], np.int32)


def table(rng: np.random.Generator, n: int, half: int) -> list[Array]:
    """Cosines and sines of n random positions."""
    angle = rng.uniform(0, 6.3, (n, half))
    return [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]


def heads_case(geometry: str, dtype: str, rows: int) -> Case:
    hq, hkv, _ = GEOMETRY[geometry]

    def build(rng: np.random.Generator) -> list[Array]:
        shapes = [(rows, (2 * hkv + 2 * hq) * D), (rows, (NI + 1) * DI), (D,), (D,), (DI,)]
        values = [normal(rng, dtype, *s) for s in shapes]
        return [*values, *table(rng, rows, RD[geometry] // 2), EPS, scalar(rows)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        proj, index, q_norm, k_norm, iq_norm, cosine, sine, eps, _ = wide(*arrays)
        rnd = rounding(dtype)

        def rotated(x: Array, norm: Array) -> Array:
            return naive.rope(naive.rms(x, norm, eps[0], rnd), cosine, sine, rnd)

        keys, values, asks = np.split(proj.reshape(rows, -1, D), [hkv, 2 * hkv], 1)
        index = index.reshape(rows, NI + 1, DI)
        return [
            rotated(asks[:, ::2], q_norm).reshape(rows, -1),
            rotated(keys, k_norm).transpose(1, 0, 2),
            values.transpose(1, 0, 2),
            rotated(index[:, :NI], iq_norm).reshape(rows, -1),
            index[:, NI],
        ]

    template = {"T": dtype, "HQ": hq, "HKV": hkv, "D": D, "NI": NI, "DI": DI, "RD": RD[geometry]}
    return Case(KERNELS["qsa_heads"], f"{geometry}-{rows}rows", template, build, oracle)


def keys_case(geometry: str, dtype: str, rows: int) -> Case:
    """What qsa_heads appends, of the first columns of its rows."""
    _, hkv, _ = GEOMETRY[geometry]
    heads = heads_case(geometry, dtype, rows)

    def build(rng: np.random.Generator) -> list[Array]:
        proj, index, _, k_norm, _, *rest = heads.build(rng)
        return [np.ascontiguousarray(proj[:, : 2 * hkv * D]), index, k_norm, *rest]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        kv, index, k_norm, *rest = arrays
        proj = np.concatenate([kv, np.ones((rows, heads.template["HQ"] * 2 * D), kv.dtype)], 1)
        _, k, v, _, raw = heads.oracle([proj, index, k_norm, k_norm, index[0, :DI], *rest])
        return k, v, raw

    template = {n: v for n, v in heads.template.items() if n != "HQ"}
    return Case(KERNELS["qsa_keys"], f"{geometry}-{rows}rows", template, build, oracle)


def pool_case(geometry: str, dtype: str, blocks: int, tail: int = 3) -> Case:
    """`tail` rows of the first block are an earlier launch's; one row more than the blocks need follows."""

    def build(rng: np.random.Generator) -> list[Array]:
        tables = table(rng, blocks, RD[geometry] // 2)
        held = normal(rng, dtype, max(tail, 1), DI)
        raw = normal(rng, dtype, blocks * RATIO - tail + 1, DI)
        return [*tables, held, raw, normal(rng, dtype, DI), EPS, scalar(tail), scalar(blocks)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        cosine, sine, held, raw, norm, eps, _, _ = wide(*arrays)
        rows = np.concatenate([held[:tail], raw])[: blocks * RATIO]
        return [naive.pool(rows, norm, RATIO, cosine, sine, eps[0], rounding(dtype))]

    template = {"T": dtype, "DI": DI, "RD": RD[geometry], "RATIO": RATIO}
    return Case(KERNELS["qsa_pool"], f"{geometry}-{blocks}blocks", template, build, oracle)


def scores_case(geometry: str, dtype: str, rows: int, blocks: int, position: int, zero: bool = False) -> Case:
    """`zero`: every head points away from every block, so that only the tie term is left."""

    def build(rng: np.random.Generator) -> list[Array]:
        divisor = np.array([np.sqrt(DI)], np.float32)
        iq, pooled = normal(rng, dtype, rows, NI * DI), normal(rng, dtype, blocks, DI)
        if zero:
            iq, pooled = -np.abs(iq), np.abs(pooled)
        return [iq, pooled, scalar(position), divisor, scalar(rows), scalar(blocks)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        iq, keys, *_ = wide(*arrays)
        ranks = np.array([naive.scores(q, keys) for q in iq.reshape(rows, NI, DI)]) - np.arange(blocks) * 1e-12
        for r in range(rows):
            ranks[r, (position + r + 1) // RATIO :] = -np.inf
        return [ranks]

    name = f"{geometry}-{rows}rows{blocks}blocks-at{position}" + "-zero" * zero
    return Case(KERNELS["qsa_scores"], name, {"T": dtype, "NI": NI, "DI": DI, "RATIO": RATIO}, build, oracle)


def top_case(geometry: str, rows: int, blocks: int, position: int, tied: bool = False) -> Case:
    """`tied`: most scores are zero, as when all four heads point away."""
    k = GEOMETRY[geometry][2]

    def build(rng: np.random.Generator) -> list[Array]:
        score = np.abs(normal(rng, "float32", rows, blocks))
        if tied:
            score = np.floor(score).astype(np.float32)
        rank = score - np.arange(blocks, dtype=np.float32) * np.float32(1e-12)
        for r in range(rows):
            rank[r, (position + r + 1) // RATIO :] = -np.inf
        return [rank, scalar(position), scalar(blocks)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        out = np.full((rows, k), -1)
        for r, row in enumerate(arrays[0]):
            n = (position + r + 1) // RATIO
            best = sorted(range(n), key=lambda b: (row[b], b))[-k:] if n else []
            out[r, : len(best)] = sorted(best)
        return [out]

    name = f"{geometry}-{rows}rows{k}of{blocks}-at{position}" + "-tied" * tied
    return Case(KERNELS["qsa_top_blocks"], name, {"K": k, "RATIO": RATIO}, build, oracle)


def visible(rng: np.random.Generator, geometry: str, dtype: str, rows: int, position: int) -> list[Array]:
    """q, k, v, chosen: a cache with room to spare and random chosen blocks."""
    hq, hkv, k = GEOMETRY[geometry]
    cap = position + rows + 9
    chosen = np.full((rows, k), -1, np.int32)
    for r in range(rows):
        n = (position + r + 1) // RATIO
        chosen[r, : min(n, k)] = np.sort(rng.permutation(n)[:k])
    keys, values = normal(rng, dtype, hkv, cap, D), normal(rng, dtype, hkv, cap, D)
    keys[:, position + rows :] = np.nan  # stale rows
    return [normal(rng, dtype, rows, hq * D), keys, values, chosen]


def splits(geometry: str) -> int:
    return -(-(GEOMETRY[geometry][2] * RATIO + RATIO - 1) // PART)


def attend_case(geometry: str, dtype: str, rows: int, position: int) -> Case:
    hq, hkv, k = GEOMETRY[geometry]
    n = splits(geometry)

    def build(rng: np.random.Generator) -> list[Array]:
        values = visible(rng, geometry, dtype, rows, position)
        return [*values, scalar(position), scalar(values[1].shape[1])]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        q, keys, values, chosen, *_ = wide(*arrays)
        q = q.reshape(rows, hq, D)
        acc, stat = np.zeros((rows, hq, n, D)), np.zeros((rows, hq, n, 2))
        stat[..., 0] = -np.inf
        for r in range(rows):
            tokens = naive.visible(chosen[r][chosen[r] >= 0], position + r, RATIO)
            for h in range(hq):
                for i in range(0, len(tokens), PART):
                    part, kv = tokens[i : i + PART], h // (hq // hkv)
                    s = keys[kv][part] @ q[r, h] / np.sqrt(D)
                    p = np.exp(s - s.max())
                    acc[r, h, i // PART] = p @ values[kv][part]
                    stat[r, h, i // PART] = s.max(), p.sum()
        return acc, stat

    template = {"T": dtype, "HQ": hq, "HKV": hkv, "D": D, "K": k, "RATIO": RATIO, "SPLITS": n}
    return Case(KERNELS["qsa_attend"], f"{geometry}-{rows}rows-at{position}", template, build, oracle)


def combine_case(geometry: str, dtype: str, rows: int, used: int) -> Case:
    """Of the parts only the first `used` hold tokens."""
    hq, hkv, _ = GEOMETRY[geometry]
    n = splits(geometry)

    def build(rng: np.random.Generator) -> list[Array]:
        acc, stat = normal(rng, "float32", rows, hq, n, D), normal(rng, "float32", rows, hq, n, 2)
        stat[..., 1] = np.abs(stat[..., 1]) + 1
        acc[:, :, used:], stat[:, :, used:, 0], stat[:, :, used:, 1] = 0, -np.inf, 0
        return [acc, stat, normal(rng, dtype, rows, (2 * hkv + 2 * hq) * D)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        acc, stat, proj = wide(*arrays)
        weight = np.exp(stat[..., 0] - stat[..., 0].max(-1, keepdims=True))
        total = (weight * stat[..., 1]).sum(-1)[..., None]
        rnd = rounding(dtype)
        out = rnd((weight[..., None] * acc).sum(2) / total)
        gate = rnd(1.0 / (1.0 + np.exp(-proj.reshape(rows, -1, D)[:, 2 * hkv + 1 :: 2])))
        return [rnd(out * gate).reshape(rows, -1)]

    template = {"T": dtype, "HQ": hq, "HKV": hkv, "D": D, "SPLITS": n}
    return Case(KERNELS["qsa_combine"], f"{geometry}-{rows}rows-{used}of{n}", template, build, oracle)


CASES = [
    heads_case("demo", "bfloat16", 4),
    heads_case("ragged", "float32", 3),
    heads_case("released", "bfloat16", 1),
    keys_case("demo", "bfloat16", 4),
    keys_case("ragged", "float32", 3),
    pool_case("demo", "bfloat16", 2),
    pool_case("ragged", "float32", 5, 1),
    scores_case("demo", "bfloat16", 4, 80, 301),
    scores_case("ragged", "float32", 3, 13, 41),
    scores_case("ragged", "float32", 3, 3, 6),
    scores_case("ragged", "float32", 2, 13, 50, zero=True),
    scores_case("released", "bfloat16", 1, 4096, 16001),
    top_case("demo", 4, 80, 301),
    top_case("demo", 3, 80, 301, tied=True),
    top_case("ragged", 3, 13, 41),
    top_case("ragged", 2, 1500, 5900, tied=True),
    top_case("ragged", 3, 6, 2),
    top_case("released", 1, 8192, 30000, tied=True),
    attend_case("demo", "bfloat16", 2, 299),
    attend_case("ragged", "float32", 3, 37),
    attend_case("ragged", "float32", 2, 3),
    attend_case("ragged", "float32", 1, 37),
    attend_case("released", "bfloat16", 1, 2100),
    combine_case("demo", "bfloat16", 2, 5),
    combine_case("ragged", "float32", 3, 1),
    combine_case("released", "bfloat16", 1, 30),
]
