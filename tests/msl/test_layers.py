"""The launchers of csrc/kernels over kernel text and over the CPU bodies: one contract, the same values."""

from typing import Any

import _qwenmtp_testing as testing
import ml_dtypes
import numpy as np
import pytest
from msl.families import qsa
from msl.families.rows import packed
from msl.harness import launcher
from msl.harness.case import Array, normal

native = testing.kernels
EPS = 1e-6
C, H, R = 4, 256, 32
TYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
ROWS = pytest.mark.parametrize("n", [3, 11])


def bits(a: Array) -> Array:
    """As the extension takes it: bfloat16 by its bits."""
    return a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a


def close(got: Array, want: Array) -> None:
    """Sums of another order: 1e-5 of the largest value, or in bfloat16 a rounding carried through the layer."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    part = 1e-5
    if want.dtype == np.uint16:
        got, want, part = got.view(ml_dtypes.bfloat16), want.view(ml_dtypes.bfloat16), 2**-7
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=part, atol=part * np.abs(want).max(initial=0) / 4)


def same(launch: Any, exact: tuple[int, ...] = ()) -> list[Array]:
    """Runs both; outputs numbered in `exact` must be equal. Returns the bodies' outputs."""
    want = launch.run()
    with launcher.text():
        got = launch.run()
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if i in exact:
            np.testing.assert_array_equal(a, b)
        else:
            close(a, b)
    return want


@TYPES
@ROWS
def test_rows(dtype: str, n: int) -> None:
    """A quantised matrix, a dense one, and a bfloat16 one under float32 rows."""
    rng = np.random.default_rng(n)
    w, s, b = packed(rng, dtype, 4, 32, 40, H)
    dense, narrow = normal(rng, dtype, 24, H, scale=H**-0.5), normal(rng, "bfloat16", 24, H, scale=H**-0.5)
    matrices = [(w, bits(s), bits(b), 4, 32), (bits(dense),), (bits(narrow),)]
    same(native.rows(bits(normal(rng, dtype, n, H)), matrices))


@TYPES
@ROWS
@pytest.mark.parametrize("bits_of", [0, 4])
def test_hyper(dtype: str, n: int, bits_of: int) -> None:
    rng = np.random.default_rng(1)
    w = C * H

    def matrix(out: int, n_in: int) -> tuple:
        if bits_of == 0:
            return (bits(normal(rng, dtype, out, n_in, scale=n_in**-0.5)),)
        codes, scales, biases = packed(rng, dtype, bits_of, 32, out, n_in)
        return (codes, bits(scales), bits(biases), bits_of, 32)

    x, y, g, norm = (bits(normal(rng, dtype, *s)) for s in ((n, w), (n, H), (n, C), (w,)))
    down, up, inject = matrix(R, w), matrix(w, R), matrix(C, w)
    same(native.hyper_write_read(x, y, g, norm, down, up, inject, C, EPS))
    same(native.hyper_read(x, norm, down, up, None, C, EPS))
    same(native.hyper_write(x, y, g))


@TYPES
@pytest.mark.parametrize(("n", "keep"), [(1, 1), (3, 2), (4, 0), (11, 10), (11, 3), (40, 40)])
def test_gdn(dtype: str, n: int, keep: int) -> None:
    """A window's output and end, and the state that a commit of its first rows leaves."""
    rng = np.random.default_rng(2)
    hk, hv, d = 2, 4, 128
    channels = 2 * hk * d + hv * d
    qkv, z, a, b = (bits(normal(rng, dtype, n, m)) for m in (channels, hv * d, hv, hv))
    conv, delta = bits(normal(rng, dtype, 3, channels)), normal(rng, "float32", hv, d, d)
    taps, rate = normal(rng, "float32", 4, channels, scale=0.5), np.exp(normal(rng, "float32", hv))
    bias, norm = bits(normal(rng, dtype, hv)), bits(normal(rng, dtype, d))
    weights = native.GdnWeights(taps, rate, bias, norm, hk, hv, d, d, EPS)
    same(native.gdn(qkv, a, b, z, conv, delta, weights), exact=(1,))
    if n <= 32:  # wider ones are no windows
        same(native.gdn_commit(qkv, a, b, keep, conv, delta, weights), exact=(0,))


@TYPES
@ROWS
def test_moe(dtype: str, n: int) -> None:
    rng = np.random.default_rng(3)
    e, k, i, s = 16, 4, 64, 128
    dims = [(e, H), (e, i, H), (e, i, H), (e, H, i), (s, H), (s, H), (H, s), (1, H)]
    w = [(bits(normal(rng, dtype, *d, scale=d[-1] ** -0.5)),) for d in dims]
    same(native.moe(bits(normal(rng, dtype, n, H)), w, k), exact=(1,))


@TYPES
@ROWS
def test_ple(dtype: str, n: int) -> None:
    rng = np.random.default_rng(4)
    w, past = C * H, 9
    x, key, value, tail = (bits(normal(rng, dtype, *s)) for s in ((n, w), (n, w), (n, H), (past, w)))
    norms, taps = [bits(normal(rng, dtype, w)) for _ in range(3)], normal(rng, "float32", 4, w, scale=0.5)
    same(native.ple(x, key, value, tail, norms, taps, C, 3, EPS))


@TYPES
@ROWS
@pytest.mark.parametrize("first", [1, 318])
def test_qsa(dtype: str, n: int, first: int) -> None:
    """Rows behind few tokens, and behind more than a row may see; some complete blocks."""
    rng = np.random.default_rng(5)
    hq, hkv, d, ni, di, ratio, k = 6, 2, 256, 4, 128, 4, 64
    sizes = (hq * 2 * d, hkv * d, hkv * d, (ni + 1) * di)
    qg, key, value, index = (bits(normal(rng, dtype, n, m)) for m in sizes)
    norms = [bits(normal(rng, dtype, m)) for m in (d, d, di, di)]
    weights = native.QsaWeights(*norms, hq, hkv, ni, ratio, k, EPS)
    tail = bits(normal(rng, dtype, first % ratio, di))
    n_new = (first + n) // ratio - first // ratio
    at, of = qsa.table(rng, n, 32), qsa.table(rng, n_new, 32)
    made = same(native.qsa_prepare(qg, key, value, index, tail, *at, *of, weights), exact=(1, 2))
    blocks = normal(rng, dtype, first // ratio + n_new + 3, di)
    keys, values = (bits(normal(rng, dtype, hkv, first + n + 5, d)) for _ in range(2))
    same(native.qsa_attend(made[4], qg, made[5], keys, values, bits(blocks), first, weights), exact=(1,))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("size", "m"), [(4096, 32), (9000, 9), (20, 20)])
@pytest.mark.parametrize("kind", ["normal", "tied", "masked", "huge"])
def test_sample(dtype: str, size: int, m: int, kind: str) -> None:
    """Every output has the same bits, the sum of exponentials too: a nucleus must not depend on who summed."""
    x = normal(np.random.default_rng(size), "float32", 3, size, scale=4.0)
    if kind == "tied":
        x = np.minimum(np.round(x), 2) + np.float32(0.25)
    elif kind == "masked":
        x[:, : size - m] = -np.inf
    elif kind == "huge":
        x *= 30
    logits = bits(x.astype({"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)))
    same(native.sample(logits, 1 / 0.7, m), exact=(0, 1, 2, 3))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_sample_of_a_row_that_is_not_finite(value: float) -> None:
    """The text says so where the bodies do; nothing else of such a row is promised."""
    x = normal(np.random.default_rng(0), "float32", 3, 1029)
    x[1, 700] = value
    launch = native.sample(x, 1.0, 9)
    with launcher.text():
        sums = launch.run()[3][:, 1]
    assert np.isnan(sums).tolist() == [False, True, False]
    np.testing.assert_array_equal(sums, launch.run()[3][:, 1])


@pytest.mark.parametrize("m", [7, 32, 128])
@pytest.mark.parametrize("top_p", [0.6, 1.0])
def test_pick(m: int, top_p: float) -> None:
    """The same token for every uniform, at an edge too: both sum in one order."""
    rng = np.random.default_rng(m)
    candidates = native.sample(normal(rng, "float32", 1, 1029, scale=3.0), 1.0, m).run()
    edges = np.cumsum(np.exp(candidates[0][0] - candidates[0].max()))
    for u in [0.0, 1.0, *(edges / edges[-1])[:: m // 7], *rng.random(10)]:
        same(native.pick(*candidates, min(20, m), top_p, float(u)), exact=(0,))


@TYPES
@pytest.mark.parametrize("width", [0, 3, 8])
def test_embedding(dtype: str, width: int) -> None:
    rng = np.random.default_rng(width)
    w, s, b = packed(rng, dtype, width, 32, 50, H) if width else (normal(rng, "float16", 50, H), None, None)
    table = (w, bits(s), bits(b), width, 32) if width else (w,)
    rows = [native.embedding(table, [3, 49, 3], 4, dtype == "bfloat16")]
    with launcher.text():
        rows.append(native.embedding(table, [3, 49, 3], 4, dtype == "bfloat16"))
    np.testing.assert_array_equal(*rows)
