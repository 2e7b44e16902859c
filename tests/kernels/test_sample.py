"""csrc/kernels/sample.cpp against tests/oracle/naive_sample.py."""

import numpy as np
import pytest
from kernels.launch import Array, invariant, native, rows_alone

from oracle import naive_sample as naive
from qwenmtp.errors import InvalidRequest

SHAPES = {"demo": (4096, 32), "released": (248320, 32), "ragged": (1029, 9), "short": (20, 20), "one": (1, 1)}
DTYPES = ("float32", "bfloat16", "float16")
SCALE = np.float32(1 / 0.6)


def logits(rng: np.random.Generator, dtype: str, n: int, size: int, kind: str) -> tuple[Array, Array]:
    """Rows as the launcher takes them, and their values in float32."""
    x = (rng.standard_normal((n, size)) * 3).astype(np.float32)
    if kind == "tied":
        x = np.minimum(np.round(x), 1)
    elif kind == "masked":
        x[rng.random((n, size)) < 0.9] = -np.inf
        x[:, : size // 2] = -np.inf  # whole blocks
    if dtype == "float16":
        return x.astype(np.float16), x.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    return x, x


@pytest.mark.parametrize("kind", ["normal", "tied", "masked"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sample(dtype: str, shape: str, kind: str) -> None:
    size, m = SHAPES[shape]
    stored, x = logits(np.random.default_rng(size), dtype, 2, size, kind)
    x[:, -1] = np.maximum(x[:, -1], -9)  # never nothing
    stored = x if dtype == "float32" else stored
    if dtype != "float32":
        stored[:, -1] = x[:, -1].astype(np.float16) if dtype == "float16" else x[:, -1].view(np.uint32) >> 16
    got = native.sample(stored, SCALE, m).run()
    want = naive.sample(x * SCALE, m)
    for a, b in zip(got[:3], want[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(got[3][:, 0], want[3][:, 0])
    np.testing.assert_allclose(got[3][:, 1], want[3][:, 1], rtol=1e-6)  # csrc/base/exp_sum.h


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 511, 512, 1028])
def test_a_row_with_nan_or_infinity_has_no_sum(value: float, at: int) -> None:
    x = logits(np.random.default_rng(0), "float32", 3, 1029, "normal")[1]
    x[1, at] = value
    sums = native.sample(x, 1.0, 9).run()[3][:, 1]
    assert np.isnan(sums).tolist() == [False, True, False]


def test_a_row_of_nan_or_of_nothing_is_no_trap() -> None:
    """Fewer candidates than asked for; the caller sees the sum or the maximum."""
    top, ids, _, total = native.sample(np.full((1, 600), np.nan, np.float32), 1.0, 9).run()
    assert np.isneginf(top).all()
    assert (ids == -1).all()
    assert np.isnan(total[0, 1])
    top, ids, ties, total = native.sample(np.full((1, 600), -np.inf, np.float32), 1.0, 9).run()
    assert np.isneginf(top).all()
    assert ids.tolist() == [list(range(9))]
    assert ties.tolist() == [[600]]
    assert np.isneginf(total[0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: str) -> None:
    x = logits(np.random.default_rng(5), dtype, 9, 1029, "tied")[0]
    rows_alone(lambda b, e: native.sample(x[b:e], SCALE, 9).run(), 9)
    invariant(lambda: native.sample(x, SCALE, 9).run())


@pytest.mark.parametrize("m", [0, 21])
def test_as_many_candidates_as_a_row_has(m: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{m} candidates of 20 values"):
        native.sample(np.zeros((1, 20), np.float32), 1.0, m).run()


LAWS = {"nucleus": (20, 0.95), "small nucleus": (20, 1e-9), "k best": (5, 1.0), "all": (32, 1.0), "best": (1, 0.5)}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", ["normal", "tied"])
def test_pick(kind: str, law: str) -> None:
    """Amid a token's share float32 draws what float64 does; u = 1 is the last token."""
    k, top_p = LAWS[law]
    x = logits(np.random.default_rng(4), "float32", 1, 4096, kind)[1]
    candidates = native.sample(x, SCALE, 32).run()
    top, ids, _, total = candidates
    kept, edges = naive.law(top[0], ids[0], total[0, 1], k, top_p)
    assert len(kept) <= k
    for u in [0.0, *naive.middles(edges), 1.0]:
        token = native.pick(*candidates, k, top_p, u).run()[0]
        assert token.tolist() == [naive.pick(top[0], ids[0], total[0, 1], k, top_p, u)], u
    assert kind == "tied" or law in ("small nucleus", "best") or len(kept) > 3


def test_picks_fall_as_the_law_says() -> None:
    """10,000 uniforms; the few within 1e-6 of an edge may fall to either side."""
    x = logits(np.random.default_rng(9), "float32", 1, 4096, "normal")[1]
    candidates = native.sample(x, SCALE, 32).run()
    top, ids, _, total = candidates
    _, edges = naive.law(top[0], ids[0], total[0, 1], 20, 0.95)
    for u in np.random.default_rng(1).random(10_000):
        if np.abs(edges - u).min() > 1e-6:
            token = native.pick(*candidates, 20, 0.95, u).run()[0]
            assert token.tolist() == [naive.pick(top[0], ids[0], total[0, 1], 20, 0.95, u)]


def test_a_pick_from_a_row_that_is_not_finite_is_one_of_its_ids() -> None:
    launch = native.sample(np.full((1, 600), np.nan, np.float32), 1.0, 9)
    assert native.pick(*launch.run(), 5, 0.95, 0.5).run()[0].tolist() == [-1]
    top, ids, ties, _ = native.sample(np.zeros((1, 600), np.float32), 1.0, 9).run()
    nan = np.full((1, 2), np.nan, np.float32)
    assert native.pick(top, ids, ties, nan, 5, 0.95, 0.5).run()[0][0] in range(9)


@pytest.mark.parametrize("k", [0, 10])
def test_a_pick_is_one_of_the_candidates(k: int) -> None:
    with pytest.raises(InvalidRequest, match=f"the {k} best of 9 candidates"):
        native.pick(*native.sample(np.zeros((1, 20), np.float32), 1.0, 9).run(), k, 0.95, 0.5).run()
