"""Whole layers from kernel text, chained as docs/kernels.md says, against the CPU bodies of csrc/kernels."""

import _qwenmtp_testing as testing
import ml_dtypes
import numpy as np
import pytest
from msl.families import gdn, hyper, moe, ple, qsa, rows
from msl.families.rows import lanes
from msl.harness.case import Array, normal
from msl.harness.cpu import run
from msl.harness.spec import Value

native = testing.kernels
KERNELS = gdn.KERNELS | hyper.KERNELS | moe.KERNELS | ple.KERNELS | qsa.KERNELS | rows.KERNELS
EPS = 1e-6
C, H, R = 4, 256, 32
TYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def text(name: str, template: dict[str, Value], *inputs: Array) -> list[Array]:
    """One launch; `template` in any order."""
    kernel = KERNELS[name]
    result = run(kernel, {n: template[n] for n, _ in kernel.template}, inputs)
    assert not result.findings, result.findings
    return result.outputs


def dense(x: Array, w: Array, n_silu: int = 0, div: int = 1) -> Array:
    """x W^T by rows_dense."""
    template = {"T": x.dtype.name, "ROWS": len(x), "IN": w.shape[1], "OUT": len(w), "LANES": lanes(w.shape[1] // 8)}
    return text("rows_dense", template | {"OUTS": 2, "SILU": n_silu, "DIV": div}, x, w)[0]


def scalar(value: float) -> Array:
    return np.array([value], np.int32 if isinstance(value, int) else np.float32)


def bits(a: Array) -> Array:
    """As the extension takes it: bfloat16 by its bits."""
    return a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a


def close(got: Array, want: Array) -> None:
    """Sums of another order: 1e-5 of the largest value, or in bfloat16 a rounding carried through the layer."""
    if want.dtype == np.uint16:
        want = want.view(ml_dtypes.bfloat16)
    got, want = got.astype(np.float64).reshape(want.shape), want.astype(np.float64)
    part = 1e-5 if got.dtype == np.float32 or np.abs(want).max() == 0 else 2**-7
    np.testing.assert_allclose(got, want, rtol=part, atol=part * np.abs(want).max() / 4)


@TYPES
def test_hyper(dtype: str) -> None:
    rng = np.random.default_rng(1)
    w = C * H
    x, y, g, norm = (normal(rng, dtype, *s) for s in ((3, w), (3, H), (3, C), (w,)))
    down, up, inject = (normal(rng, dtype, *s, scale=s[1] ** -0.5) for s in ((R, w), (w, R), (C, w)))
    x_out, z = text("hyper_write", {"T": dtype, "C": C, "H": H}, x, y, g, norm, scalar(EPS))
    low = dense(z, np.concatenate([down, inject, np.zeros((8 - C, w), down.dtype)]), R, C)
    gate = dense(low, np.concatenate([up, np.zeros((w, 8), up.dtype)], 1))
    read = text("hyper_read", {"T": dtype, "C": C, "H": H, "LOW": R + 8}, z, gate, low)
    args = [*map(bits, (x, y, g, norm)), (bits(down),), (bits(up),), (bits(inject),), C, EPS]
    for got, want in zip([x_out, *read], native.hyper_write_read(*args).run(), strict=True):
        close(got, want)


@TYPES
def test_gdn(dtype: str) -> None:
    """Two windows: of the first, of three rows, two are kept."""
    rng = np.random.default_rng(2)
    hk, hv, d = 2, 4, 128
    channels, keep = 2 * hk * d + hv * d, 2
    template: dict[str, Value] = {"T": dtype, "HK": hk, "HV": hv, "DK": d, "DV": d, "CONV": 4}
    windows = [[normal(rng, dtype, n, m) for m in (channels, hv * d, hv, hv)] for n in (3, 2)]
    tail, delta = normal(rng, dtype, 3, channels), normal(rng, "float32", hv, d, d)
    taps, rate = normal(rng, "float32", 4, channels, scale=0.5), np.exp(normal(rng, "float32", hv))
    bias, norm = normal(rng, dtype, hv), normal(rng, dtype, d)

    projs = [np.concatenate(w, 1) for w in windows]  # q k v, z, a, b
    before, kept = projs[0], scalar(0)
    conv, state, window = tail, delta, None
    for proj in projs:
        *made, conv = text("gdn_inputs", template, proj, before, kept, conv, taps, rate, bias)
        prev = window or made[1:]
        rest = (norm, scalar(EPS), state, *prev, kept, scalar(len(proj)))
        out, state = text("gdn_verify_rows", template, *made, proj, *rest)
        before, kept, window = proj, scalar(keep), made[1:]

    weights = native.GdnWeights(taps, rate, bits(bias), bits(norm), hk, hv, d, d, EPS)
    (qkv, _, a, b), (qkv2, z2, a2, b2) = ([*map(bits, w)] for w in windows)
    left = native.gdn_commit(qkv, a, b, keep, bits(tail), delta, weights).run()
    want, *_ = native.gdn(qkv2, a2, b2, z2, *left, weights).run()
    for got, exact in zip((conv, state, out), (*left, want), strict=True):
        close(got, exact)


@TYPES
def test_moe(dtype: str) -> None:
    rng = np.random.default_rng(3)
    e, k, i, s, n = 16, 4, 64, 128, 4
    dims = [(e, H), (e, i, H), (e, i, H), (e, H, i), (s, H), (s, H), (H, s), (1, H)]
    w = [normal(rng, dtype, *d, scale=d[-1] ** -0.5) for d in dims]
    u = normal(rng, dtype, n, H)
    router, gate, up, down, shared_gate, shared_up, shared_down, shared_weight = w
    expert, weight, order = text("moe_route", {"T": dtype, "E": e, "K": k}, dense(u, router), scalar(n))
    template: dict[str, Value] = {"T": dtype, "ROWS": n, "K": k, "OUTS": 2}
    wide = template | {"IN": H, "OUT": i, "LANES": lanes(H // 8)}
    narrow = template | {"IN": i, "OUT": H, "LANES": lanes(i // 8)}
    (h,) = text("rows_gather_glu_dense", wide, u, expert, order, gate, up)
    (y,) = text("rows_gather_dense", narrow, h, expert, order, weight, down)
    (hidden,) = text("rows_glu_dense", wide | {"OUT": s}, u, shared_gate, shared_up)
    shared = dense(hidden, shared_down)
    (out,) = text("moe_combine", {"T": dtype, "H": H, "K": k}, shared, y, dense(u, shared_weight))
    want, ids, weights = native.moe(bits(u), [(bits(a),) for a in w], k).run()
    np.testing.assert_array_equal(expert, ids)
    close(weight, weights)
    close(out, want)


@TYPES
def test_ple(dtype: str) -> None:
    rng = np.random.default_rng(4)
    w, n, past = C * H, 3, 9
    x, key, value, tail = (normal(rng, dtype, *s) for s in ((n, w), (n, w), (n, H), (past, w)))
    norms, taps = [normal(rng, dtype, w) for _ in range(3)], normal(rng, "float32", 4, w, scale=0.5)
    template: dict[str, Value] = {"T": dtype, "C": C, "H": H, "W": w, "TAPS": 4, "DIL": 3}
    gated, normed = text("ple_gate", template, key, value, x, *norms, scalar(EPS))
    out, _ = text("ple_conv", template, x, gated, normed, normed, scalar(0), tail, taps)
    _, conv = text("ple_conv", template, x, gated, normed, normed, scalar(n), tail, taps)
    args = (*map(bits, (x, key, value, tail)), [*map(bits, norms)], taps, C, 3, EPS)
    added, rows_normed, left = native.ple(*args).run()
    sum_of = added if dtype == "float32" else added.view(ml_dtypes.bfloat16)
    close(out, bits((x.astype(np.float32) + sum_of.astype(np.float32)).astype(x.dtype)))
    close(normed, rows_normed)
    close(conv, left)


@TYPES
def test_qsa(dtype: str) -> None:
    """Three rows behind 318 tokens, of which 64 blocks are seen: the middle row completes a block."""
    rng = np.random.default_rng(5)
    hq, hkv, d, ni, di, ratio, k, n, first = 6, 2, 256, 4, 128, 4, 64, 3, 318
    template: dict[str, Value] = {"T": dtype, "HQ": hq, "HKV": hkv, "D": d, "NI": ni, "DI": di, "RD": 64}
    template |= {"RATIO": ratio, "K": k, "SPLITS": 5}
    qg, key, value, index = (normal(rng, dtype, n, m) for m in (hq * 2 * d, hkv * d, hkv * d, (ni + 1) * di))
    norms = [normal(rng, dtype, m) for m in (d, d, di, di)]
    at, of = qsa.table(rng, n, 32), qsa.table(rng, 1, 32)
    q, k_new, v_new, iq, raw_new = text(
        "qsa_heads", template, qg, key, value, index, *norms[:3], *at, scalar(EPS), scalar(n)
    )
    raw = np.concatenate([normal(rng, dtype, first, di), raw_new])
    block = first // ratio
    (pooled_new,) = text("qsa_pool", template, raw, scalar(block), norms[3], *of, scalar(EPS), scalar(1))
    weights = native.QsaWeights(*map(bits, norms), hq, hkv, ni, ratio, k, EPS)
    tail = raw[block * ratio : first]
    made = native.qsa_prepare(*map(bits, (qg, key, value, index, tail)), *at, *of, weights).run()
    for got, want in zip((k_new, v_new, raw_new, pooled_new, q, iq), made, strict=True):
        close(got, want)

    pooled = np.concatenate([normal(rng, dtype, block, di), pooled_new])
    keys, values = (np.concatenate([normal(rng, dtype, hkv, first, d), a], 1) for a in (k_new, v_new))
    counts = (scalar(n), scalar(len(pooled)))
    (rank,) = text("qsa_scores", template, iq, pooled, scalar(first), scalar(float(np.sqrt(di))), *counts)
    (chosen,) = text("qsa_top_blocks", template, rank, scalar(first), scalar(len(pooled)))
    parts = text("qsa_attend", template, q, keys, values, chosen, scalar(first), scalar(keys.shape[1]))
    (out,) = text("qsa_combine", template, *parts, qg)
    flat = (bits(q).reshape(n, -1), bits(qg), bits(iq).reshape(n, -1))
    y, blocks = native.qsa_attend(*flat, *map(bits, (keys, values, pooled)), first, weights).run()
    np.testing.assert_array_equal(chosen, blocks)
    close(out, y)
