"""Cases of metal/rows.metal."""

from collections.abc import Sequence

import numpy as np
from msl.harness.case import Array, Case, normal, rounding, wide
from msl.harness.spec import load

from oracle import naive_hyper
from oracle import naive_rows as naive

KERNELS = load("rows")


def lanes(n_chunks: int) -> int:
    """Lanes that share an output: the largest power of two up to 32 that divides the chunks, 32 if that is below 4."""
    power = min(32, n_chunks & -n_chunks)
    return power if power >= 4 else 32


def packed(rng: np.random.Generator, dtype: str, bits: int, group: int, *shape: int) -> list[Array]:
    """Random words, scales and biases of an affine matrix whose weights are near normal / sqrt(in)."""
    *lead, n_in = shape
    words = rng.integers(0, 2**32, (*lead, n_in * bits // 32), np.uint32)
    scale = 3.5 / (1 << bits) / n_in**0.5
    scales = normal(rng, "float32", *lead, n_in // group, scale=0.1 * scale) + np.float32(scale)
    biases = -scales * np.float32((1 << bits) / 2)
    kind = normal(rng, dtype, 1).dtype
    return [words, scales.astype(kind), biases.astype(kind)]


def plain_case(
    shape: str, dtype: str, rows: int, n_in: int, n_out: int, bits: int, group: int = 64, **more: int
) -> Case:
    """`bits` 0 is a dense matrix. `more`: outs, n_silu, div, split."""
    outs, n_silu, div, split = (more.get(k, v) for k, v in (("outs", 2), ("n_silu", 0), ("div", 1), ("split", 1)))

    def build(rng: np.random.Generator) -> list[Array]:
        x = normal(rng, dtype, rows, n_in)
        if bits:
            return [x, *packed(rng, dtype, bits, group, n_out, n_in)]
        return [x, normal(rng, dtype, n_out, n_in, scale=n_in**-0.5)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        x, *w = wide(*arrays)
        return [naive.plain(x, naive.affine(*w, bits) if bits else w[0], n_silu, div, rounding(dtype))]

    template = {"T": dtype, "W": dtype, "ROWS": rows, "IN": n_in, "OUT": n_out}
    if bits:
        template |= {"BITS": bits, "GROUP": group}
    template |= {"LANES": lanes(n_in // (32 if bits else 8)), "SPLIT": split, "OUTS": outs, "SILU": n_silu, "DIV": div}
    name = f"{shape}-{rows}x{n_in}x{n_out}" + (f"-{bits}bit{group}" if bits else "")
    return Case(KERNELS["rows_affine" if bits else "rows_dense"], name, template, build, oracle)


def glu_case(shape: str, dtype: str, rows: int, n_in: int, n_out: int, bits: int, group: int = 64) -> Case:
    def build(rng: np.random.Generator) -> list[Array]:
        x = normal(rng, dtype, rows, n_in)
        if bits:
            return [x, *packed(rng, dtype, bits, group, n_out, n_in), *packed(rng, dtype, bits, group, n_out, n_in)]
        return [x, *(normal(rng, dtype, n_out, n_in, scale=n_in**-0.5) for _ in range(2))]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        x, *w = wide(*arrays)
        gate, up = (naive.affine(*w[:3], bits), naive.affine(*w[3:], bits)) if bits else w
        return [naive.glu(x, gate, up, rounding(dtype))]

    template = {"T": dtype, "W": dtype, "ROWS": rows, "IN": n_in, "OUT": n_out}
    if bits:
        template |= {"BITS": bits, "GROUP": group}
    template |= {"LANES": lanes(n_in // (32 if bits else 8)), "OUTS": 2}
    name = f"{shape}-{rows}x{n_in}x{n_out}" + (f"-{bits}bit{group}" if bits else "")
    return Case(KERNELS["rows_glu_affine" if bits else "rows_glu_dense"], name, template, build, oracle)


def _choice(rng: np.random.Generator, rows: int, k: int, experts: int) -> list[Array]:
    """Distinct experts a row, all rows sharing the first, and the pairs sorted by expert."""
    expert = np.array([rng.permutation(experts)[:k] for _ in range(rows)], np.int32)
    for row in expert[1:]:
        if expert[0, 0] not in row:
            row[rng.integers(k)] = expert[0, 0]
    return [expert, np.argsort(expert.ravel(), kind="stable").astype(np.int32)]


def gather_case(
    shape: str, dtype: str, glu: bool, rows: int, k: int, n_in: int, n_out: int, bits: int, group: int = 64
) -> Case:
    experts = 2 * k + 1

    def build(rng: np.random.Generator) -> list[Array]:
        x = normal(rng, dtype, rows if glu else rows * k, n_in)
        weight = [] if glu else [naive_weights(rng, dtype, rows, k)]
        if bits:
            w = [a for _ in range(1 + glu) for a in packed(rng, dtype, bits, group, experts, n_out, n_in)]
        else:
            w = [normal(rng, dtype, experts, n_out, n_in, scale=n_in**-0.5) for _ in range(1 + glu)]
        return [x, *_choice(rng, rows, k, experts), *weight, *w]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        x, expert, _, *rest = wide(*arrays)
        rnd = rounding(dtype)
        w = rest if glu else rest[1:]
        matrices = [naive.affine(*w[i : i + 3], bits) for i in range(0, len(w), 3)] if bits else w
        out = np.zeros((rows * k, n_out))
        for pair, e in enumerate(expert.ravel()):
            if glu:
                out[pair] = naive.glu(x[None, pair // k], matrices[0][e], matrices[1][e], rnd)[0]
            else:
                out[pair] = rnd(rnd(x[pair] @ matrices[0][e].T) * rest[0].ravel()[pair])
        return [out]

    template = {"T": dtype, "W": dtype, "ROWS": rows, "K": k, "IN": n_in, "OUT": n_out}
    if bits:
        template |= {"BITS": bits, "GROUP": group}
    template |= {"LANES": lanes(n_in // (32 if bits else 8)), "OUTS": 2}
    name = f"rows_gather{'_glu' * glu}_{'affine' if bits else 'dense'}"
    tag = f"{shape}-{rows}rows{k}of{experts}x{n_in}x{n_out}" + (f"-{bits}bit{group}" if bits else "")
    return Case(KERNELS[name], tag, template, build, oracle)


def mix_case(shape: str, dtype: str, rows: int, c: int, h: int, rank: int, bits: int, group: int = 32) -> Case:
    def build(rng: np.random.Generator) -> list[Array]:
        low, z = normal(rng, dtype, rows, rank + 8), normal(rng, dtype, rows, c * h)
        up = [normal(rng, dtype, c * h, rank, scale=rank**-0.5)]
        return [low, z, *(packed(rng, dtype, bits, group, c * h, rank) if bits else up)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        low, z, *w = wide(*arrays)
        rnd = rounding(dtype)
        up = rnd(low[:, :rank] @ (naive.affine(*w, bits) if bits else w[0]).T)
        return [naive_hyper.mix(z, up, c, rnd), naive_hyper.inject(low[:, rank : rank + c], rnd)]

    template = {"T": dtype, "W": dtype, "ROWS": rows, "R": rank, "H": h, "C": c}
    if bits:
        template |= {"BITS": bits, "GROUP": group}
    template |= {"LANES": lanes(rank // (32 if bits else 8))}
    name = f"{shape}-{rows}rows{c}x{h}x{rank}" + (f"-{bits}bit{group}" if bits else "")
    return Case(KERNELS["rows_mix_affine" if bits else "rows_mix_dense"], name, template, build, oracle)


def naive_weights(rng: np.random.Generator, dtype: str, rows: int, k: int) -> Array:
    """Router weights: positive, a row sums to 1."""
    w = np.exp(normal(rng, "float32", rows, k))
    return (w / w.sum(-1, keepdims=True)).astype(normal(rng, dtype, 1).dtype)


CASES = [
    *(plain_case("ragged", "float32", 3, 128, 13, bits, 32) for bits in (2, 3, 4, 5, 6, 8)),
    *(plain_case("demo", "bfloat16", 4, 256, 65, bits, group) for bits, group in ((4, 32), (4, 64), (8, 64), (6, 128))),
    plain_case("demo", "float16", 2, 256, 33, 4, 64),
    plain_case("demo", "bfloat16", 1, 256, 1, 8, 64),
    plain_case("released", "bfloat16", 4, 2560, 64, 4, 64, outs=4),
    plain_case("released", "bfloat16", 1, 2560, 64, 8, 64, outs=4),
    plain_case("ragged", "float32", 8, 96, 7, 0, outs=1),
    plain_case("demo", "bfloat16", 4, 1024, 36, 0, n_silu=32, div=4),
    plain_case("demo", "float32", 1, 32, 64, 0),
    plain_case("released", "bfloat16", 2, 10240, 12, 0, n_silu=8, div=4, outs=1, split=4),
    plain_case("ragged", "float32", 3, 256, 13, 4, 32, split=4),
    plain_case("ragged", "float32", 2, 96, 9, 0, split=2),
    mix_case("demo", "bfloat16", 4, 4, 256, 32, 0),
    mix_case("ragged", "float32", 3, 3, 45, 24, 0),
    mix_case("ragged", "float32", 8, 3, 45, 64, 4),
    mix_case("released", "bfloat16", 1, 4, 2560, 320, 0),
    glu_case("ragged", "float32", 3, 128, 5, 4, 32),
    glu_case("demo", "bfloat16", 4, 256, 128, 4),
    glu_case("ragged", "float32", 3, 64, 5, 0),
    glu_case("demo", "bfloat16", 2, 256, 128, 0),
    gather_case("ragged", "float32", True, 3, 2, 128, 5, 4, 32),
    gather_case("demo", "bfloat16", True, 4, 4, 256, 64, 4),
    gather_case("ragged", "float32", True, 3, 2, 64, 5, 0),
    gather_case("demo", "bfloat16", True, 1, 4, 256, 64, 0),
    gather_case("ragged", "float32", False, 3, 2, 128, 5, 4, 32),
    gather_case("demo", "bfloat16", False, 4, 4, 64, 256, 4),
    gather_case("ragged", "float32", False, 3, 2, 64, 5, 0),
    gather_case("demo", "bfloat16", False, 1, 4, 64, 256, 0),
]
