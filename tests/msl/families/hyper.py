"""Cases of metal/hyper.metal."""

from collections.abc import Sequence

import numpy as np
from msl.harness.case import Array, Case, normal, rounding, wide
from msl.harness.spec import load

from oracle import naive_hyper as naive

KERNELS = load("hyper")
EPS = np.array([1e-6], np.float32)

# C, H, low-rank width
GEOMETRY = {"demo": (4, 256, 40), "ragged": (3, 300, 24), "released": (4, 2560, 328)}


def norm_case(geometry: str, dtype: str, rows: int) -> Case:
    c, h, _ = GEOMETRY[geometry]

    def build(rng: np.random.Generator) -> list[Array]:
        return [normal(rng, dtype, rows, c * h), normal(rng, dtype, c * h), EPS]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        x, w, eps = wide(*arrays)
        return [naive.norm(x, w, c, eps[0], rounding(dtype))]

    return Case(KERNELS["hyper_norm"], f"{geometry}-{rows}rows", {"T": dtype, "C": c, "H": h}, build, oracle)


def write_case(geometry: str, dtype: str, rows: int) -> Case:
    c, h, _ = GEOMETRY[geometry]

    def build(rng: np.random.Generator) -> list[Array]:
        x, y = normal(rng, dtype, rows, c * h), normal(rng, dtype, rows, h)
        return [x, y, normal(rng, dtype, rows, c), normal(rng, dtype, c * h), EPS]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        x, y, g, w, eps = wide(*arrays)
        out = naive.write(x, y, g, rounding(dtype))
        return out, naive.norm(out, w, c, eps[0], rounding(dtype))

    return Case(KERNELS["hyper_write"], f"{geometry}-{rows}rows", {"T": dtype, "C": c, "H": h}, build, oracle)


def read_case(geometry: str, dtype: str, rows: int, is_mixer: bool = False) -> Case:
    c, h, low = GEOMETRY[geometry]

    def build(rng: np.random.Generator) -> list[Array]:
        z, up = normal(rng, dtype, rows, c * h), normal(rng, dtype, rows, c * h)
        return [z, up] if is_mixer else [z, up, normal(rng, dtype, rows, low)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        z, up, *rest = wide(*arrays)
        u = naive.mix(z, up, c, rounding(dtype))
        return [u] if is_mixer else [u, naive.inject(rest[0][:, low - 8 : low - 8 + c], rounding(dtype))]

    template = {"T": dtype, "C": c, "H": h} | ({} if is_mixer else {"LOW": low})
    return Case(KERNELS["hyper_mean" if is_mixer else "hyper_read"], f"{geometry}-{rows}rows", template, build, oracle)


CASES = [
    *(
        make(*case)
        for make in (norm_case, write_case, read_case)
        for case in (
            ("demo", "bfloat16", 4),
            ("demo", "float32", 2),
            ("ragged", "float32", 3),
            ("released", "bfloat16", 2),
        )
    ),
    read_case("ragged", "float32", 3, is_mixer=True),
    read_case("demo", "bfloat16", 4, is_mixer=True),
]
