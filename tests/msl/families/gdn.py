"""Cases of metal/gdn.metal."""

from collections.abc import Sequence

import numpy as np
from msl.harness.case import Array, Case, normal, rounding, wide
from msl.harness.spec import load

from oracle import naive_gdn as naive

KERNELS = load("gdn")
CONV = 4
EPS = 1e-6

# HK, HV, DK, DV
GEOMETRY = {"demo": (2, 4, 128, 128), "ragged": (1, 3, 64, 32), "released": (16, 48, 128, 128)}


def _sizes(geometry: str) -> tuple[int, int, int, int, int, int]:
    hk, hv, dk, dv = GEOMETRY[geometry]
    channels = 2 * hk * dk + hv * dv
    return hk, hv, dk, dv, channels, channels + hv * dv + 2 * hv


def inputs_case(geometry: str, dtype: str, rows: int, prev: int, keep: int) -> Case:
    hk, hv, dk, dv, channels, width = _sizes(geometry)

    def build(rng: np.random.Generator) -> list[Array]:
        return [
            normal(rng, dtype, rows, width),
            normal(rng, dtype, prev, width),
            np.array([keep], np.int32),
            normal(rng, dtype, CONV - 1, channels),
            normal(rng, "float32", CONV, channels, scale=0.5),
            np.exp(normal(rng, "float32", hv)),
            normal(rng, dtype, hv),
        ]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        proj, before, _, tail, conv_w, rate, dt_bias = wide(*arrays)
        past = np.concatenate([tail, before[:keep, :channels]])[-(CONV - 1) :]
        a, b = proj[:, -2 * hv : -hv], proj[:, -hv:]
        q, k, v, g, beta = naive.inputs(
            proj[:, :channels], a, b, past, conv_w, rate, dt_bias, hk, dk, hv, dv, rounding(dtype)
        )
        return q, k, v, g, beta, past

    template = {"T": dtype, "HK": hk, "HV": hv, "DK": dk, "DV": dv, "CONV": CONV}
    return Case(KERNELS["gdn_inputs"], f"{geometry}-{rows}rows-keep{keep}of{prev}", template, build, oracle)


def _rows(rng: np.random.Generator, geometry: str, dtype: str, rows: int) -> list[Array]:
    """q k v g beta as gdn_inputs hands them on."""
    hk, hv, dk, dv, _, _ = _sizes(geometry)
    q, k = normal(rng, "float32", rows, hk, dk), normal(rng, "float32", rows, hk, dk)
    q /= np.linalg.norm(q, axis=-1, keepdims=True) * dk**0.5
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = normal(rng, dtype, rows, hv, dv)
    g = np.exp(-np.abs(normal(rng, "float32", rows, hv)))
    beta = naive.sigmoid(normal(rng, "float32", rows, hv)).astype(v.dtype)
    return [q.astype(v.dtype), k.astype(v.dtype), v, g, beta]


def step_case(geometry: str, dtype: str, rows: int) -> Case:
    hk, hv, dk, dv, _, _ = _sizes(geometry)

    def build(rng: np.random.Generator) -> list[Array]:
        return [*_rows(rng, geometry, dtype, rows), normal(rng, "float32", hv, dv, dk), np.array([rows], np.int32)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        return naive.steps(*wide(*arrays[:6]))

    return Case(
        KERNELS["gdn_step"],
        f"{geometry}-{rows}rows",
        {"T": dtype, "HK": hk, "HV": hv, "DK": dk, "DV": dv},
        build,
        oracle,
    )


def norm_case(geometry: str, dtype: str, rows: int) -> Case:
    hk, hv, dk, dv, channels, width = _sizes(geometry)

    def build(rng: np.random.Generator) -> list[Array]:
        y, proj = normal(rng, dtype, rows, hv, dv), normal(rng, dtype, rows, width)
        return [y, proj, normal(rng, dtype, dv), np.array([EPS], np.float32)]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        y, proj, w, _ = wide(*arrays)
        z = proj[:, channels : channels + hv * dv].reshape(rows, hv, dv)
        return [naive.gated_norm(y, z, w, EPS, rounding(dtype))]

    return Case(
        KERNELS["gdn_norm"],
        f"{geometry}-{rows}rows",
        {"T": dtype, "HK": hk, "HV": hv, "DK": dk, "DV": dv},
        build,
        oracle,
    )


def verify_case(geometry: str, dtype: str, rows: int, prev: int, keep: int) -> Case:
    hk, hv, dk, dv, channels, width = _sizes(geometry)

    def build(rng: np.random.Generator) -> list[Array]:
        q, k, v, g, beta = _rows(rng, geometry, dtype, rows)
        _, prev_k, prev_v, prev_g, prev_beta = _rows(rng, geometry, dtype, prev)
        proj, norm_w = normal(rng, dtype, rows, width), normal(rng, dtype, dv)
        state = normal(rng, "float32", hv, dv, dk)
        scalars = [np.array([keep], np.int32), np.array([rows], np.int32)]
        return [
            q,
            k,
            v,
            g,
            beta,
            proj,
            norm_w,
            np.array([EPS], np.float32),
            state,
            prev_k,
            prev_v,
            prev_g,
            prev_beta,
            *scalars,
        ]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        q, k, v, g, beta, proj, norm_w, _, state, prev_k, prev_v, prev_g, prev_beta, _, _ = wide(*arrays)
        kept = slice(0, keep)
        _, committed = naive.steps(prev_k[kept], prev_k[kept], prev_v[kept], prev_g[kept], prev_beta[kept], state)
        y, _ = naive.steps(q, k, v, g, beta, committed)
        z = proj[:, channels : channels + hv * dv].reshape(rows, hv, dv)
        rnd = rounding(dtype)
        return naive.gated_norm(rnd(y), z, norm_w, EPS, rnd), committed

    template = {"T": dtype, "HK": hk, "HV": hv, "DK": dk, "DV": dv}
    return Case(KERNELS["gdn_verify_rows"], f"{geometry}-{rows}rows-keep{keep}of{prev}", template, build, oracle)


CASES = [
    *(inputs_case("demo", t, 4, 4, 2) for t in ("float32", "bfloat16", "float16")),
    inputs_case("demo", "bfloat16", 1, 1, 0),
    inputs_case("ragged", "float32", 5, 2, 2),
    inputs_case("released", "bfloat16", 2, 4, 3),
    *(step_case("demo", t, 3) for t in ("float32", "bfloat16", "float16")),
    step_case("ragged", "float32", 5),
    step_case("released", "bfloat16", 1),
    *(norm_case("demo", t, 2) for t in ("float32", "bfloat16")),
    norm_case("ragged", "float32", 3),
    *(verify_case("demo", t, 4, 4, 3) for t in ("float32", "bfloat16")),
    verify_case("demo", "bfloat16", 1, 1, 1),
    verify_case("ragged", "float32", 8, 8, 5),
    verify_case("released", "bfloat16", 4, 4, 2),
]
