"""Cases of metal/hyper.metal."""

from collections.abc import Sequence

import numpy as np
from msl.harness.case import Array, Case, normal, rounding, wide
from msl.harness.spec import load

from oracle import naive_hyper as naive

KERNELS = load("hyper")
EPS = np.array([1e-6], np.float32)

GEOMETRY = {"demo": (4, 256), "ragged": (3, 300), "released": (4, 2560), "whole": (1, 10240)}  # C, H


def norm_case(geometry: str, dtype: str, rows: int) -> Case:
    c, h = GEOMETRY[geometry]

    def build(rng: np.random.Generator) -> list[Array]:
        return [normal(rng, dtype, rows, c * h), normal(rng, dtype, c * h), EPS]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        x, w, eps = wide(*arrays)
        return [naive.norm(x, w, c, eps[0], rounding(dtype))]

    return Case(KERNELS["hyper_norm"], f"{geometry}-{rows}rows", {"T": dtype, "C": c, "H": h}, build, oracle)


def write_case(geometry: str, dtype: str, rows: int) -> Case:
    c, h = GEOMETRY[geometry]

    def build(rng: np.random.Generator) -> list[Array]:
        x, y = normal(rng, dtype, rows, c * h), normal(rng, dtype, rows, h)
        return [x, y, normal(rng, dtype, rows, c), normal(rng, dtype, c * h), EPS]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        x, y, g, w, eps = wide(*arrays)
        out = naive.write(x, y, g, rounding(dtype))
        return out, naive.norm(out, w, c, eps[0], rounding(dtype))

    return Case(KERNELS["hyper_write"], f"{geometry}-{rows}rows", {"T": dtype, "C": c, "H": h}, build, oracle)


CASES = [
    norm_case("whole", "bfloat16", 1),
    *(
        make(*case)
        for make in (norm_case, write_case)
        for case in (
            ("demo", "bfloat16", 4),
            ("demo", "float32", 2),
            ("ragged", "float32", 3),
            ("released", "bfloat16", 2),
        )
    ),
]
