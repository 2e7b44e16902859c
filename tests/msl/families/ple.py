"""Cases of metal/ple.metal."""

from collections.abc import Sequence

import numpy as np
from msl.harness.case import Array, Case, normal, rounding, wide
from msl.harness.spec import load

from oracle import naive_ple as naive

KERNELS = load("ple")
EPS = np.array([1e-6], np.float32)
TAPS, DILATION = 4, 3
PAST = (TAPS - 1) * DILATION

GEOMETRY = {"demo": (4, 256), "ragged": (3, 300), "released": (4, 2560)}  # C, H


def gate_case(geometry: str, dtype: str, rows: int) -> Case:
    c, h = GEOMETRY[geometry]

    def build(rng: np.random.Generator) -> list[Array]:
        key, x = normal(rng, dtype, rows, c * h), normal(rng, dtype, rows, c * h)
        key[0, :h] = 0  # a stream whose dot product is exactly zero
        norms = [normal(rng, dtype, c * h) for _ in range(3)]
        return [key, normal(rng, dtype, rows, h), x, *norms, EPS]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        *values, eps = wide(*arrays)
        return naive.gate(*values, c, eps[0], rounding(dtype))

    return Case(KERNELS["ple_gate"], f"{geometry}-{rows}rows", {"T": dtype, "C": c, "H": h}, build, oracle)


def conv_case(geometry: str, dtype: str, rows: int) -> Case:
    c, h = GEOMETRY[geometry]
    w = c * h

    def build(rng: np.random.Generator) -> list[Array]:
        gated, normed = (normal(rng, dtype, rows, w) for _ in range(2))
        count, tail = np.array([rows], np.int32), normal(rng, dtype, PAST, w)
        return [gated, normed, count, tail, normal(rng, "float32", TAPS, w, scale=0.5)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        gated, normed, _, tail, conv_w = wide(*arrays)
        history = np.concatenate([tail, normed])
        return naive.conv(gated, history, conv_w, DILATION, rounding(dtype)), history[-PAST:]

    template = {"T": dtype, "W": w, "TAPS": TAPS, "DIL": DILATION}
    return Case(KERNELS["ple_conv"], f"{geometry}-{rows}rows", template, build, oracle)


CASES = [
    gate_case("demo", "bfloat16", 4),
    gate_case("demo", "float32", 1),
    gate_case("ragged", "float32", 3),
    gate_case("released", "bfloat16", 1),
    conv_case("demo", "bfloat16", 4),
    conv_case("demo", "float32", 1),
    conv_case("ragged", "float32", 11),
    conv_case("released", "bfloat16", 2),
]
