"""Cases of metal/moe.metal."""

from collections.abc import Sequence

import numpy as np
from msl.harness.case import Array, Case, normal, rounding, wide
from msl.harness.spec import load

from oracle import naive_moe as naive

KERNELS = load("moe")


def route_case(shape: str, dtype: str, rows: int, experts: int, k: int, tied: bool = False) -> Case:
    """`tied`: few distinct logits, so that ids decide."""

    def build(rng: np.random.Generator) -> list[Array]:
        logits = normal(rng, dtype, rows, experts)
        if tied:
            logits = np.round(logits.astype(np.float32)).astype(logits.dtype)
        return [logits, np.array([rows], np.int32)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        return naive.route(wide(arrays[0])[0], k, rounding(dtype))

    name = f"{shape}-{rows}rows{k}of{experts}" + "-tied" * tied
    return Case(KERNELS["moe_route"], name, {"T": dtype, "E": experts, "K": k}, build, oracle)


def combine_case(shape: str, dtype: str, rows: int, hidden: int, k: int) -> Case:
    def build(rng: np.random.Generator) -> list[Array]:
        return [normal(rng, dtype, rows, hidden), normal(rng, dtype, rows * k, hidden), normal(rng, dtype, rows, 1)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        shared, y, gate = wide(*arrays)
        return [naive.combine(y, shared, gate, k, rounding(dtype))]

    return Case(
        KERNELS["moe_combine"], f"{shape}-{rows}rows{k}x{hidden}", {"T": dtype, "H": hidden, "K": k}, build, oracle
    )


CASES = [
    route_case("demo", "bfloat16", 4, 16, 4),
    route_case("demo", "float32", 1, 16, 4),
    route_case("ragged", "float32", 8, 45, 5),
    route_case("ragged", "float32", 3, 45, 5, tied=True),
    route_case("released", "bfloat16", 4, 512, 10),
    route_case("released", "bfloat16", 8, 512, 10, tied=True),
    combine_case("demo", "bfloat16", 4, 256, 4),
    combine_case("ragged", "float32", 3, 300, 11),
    combine_case("released", "bfloat16", 2, 2560, 10),
]
