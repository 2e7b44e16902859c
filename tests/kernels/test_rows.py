"""csrc/kernels/rows.cpp against tests/oracle/naive_rows.py."""

import numpy as np
import pytest
from kernels.launch import DTYPES, close, invariant, native, same_bits, stored, wide

from oracle import naive_rows
from qwenmtp.errors import InvalidRequest

Array = np.ndarray
BITS = (2, 3, 4, 5, 6, 8)


def dense(rng: np.random.Generator, out: int, cols: int, kind: str) -> tuple[tuple, Array]:
    w = rng.standard_normal((out, cols))
    w = w.astype(np.float16) if kind == "float16" else stored(w, kind)
    return (w,), wide(w)


def pack(codes: Array, bits: int) -> Array:
    """Codes [.., in] -> uint32 words, low bits first."""
    stream = (codes[..., None].astype(np.uint32) >> np.arange(bits, dtype=np.uint32)) & 1
    words = stream.reshape(*codes.shape[:-1], -1, 32)
    return (words << np.arange(32, dtype=np.uint32)).sum(-1).astype(np.uint32)


def affine(rng: np.random.Generator, out: int, cols: int, bits: int, group: int, kind: str) -> tuple[tuple, Array]:
    codes = pack(rng.integers(0, 2**bits, (out, cols)), bits)
    scales = stored(rng.uniform(0.5, 1.0, (out, cols // group)) / 2**bits, kind)
    biases = stored(rng.uniform(-1.0, 0.0, (out, cols // group)), kind)
    return (codes, scales, biases, bits, group), naive_rows.affine(codes, wide(scales), wide(biases), bits)


SHAPES = {"demo": (1024, 256), "narrow": (32, 1024), "released": (48, 2560), "ragged": (37, 93), "one": (1, 5)}


@pytest.mark.parametrize("n", [1, 3, 8, 9, 200])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dense(dtype: str, kind: str, shape: str, n: int) -> None:
    rng = np.random.default_rng(n)
    out, cols = SHAPES[shape]
    weight, w = dense(rng, out, cols, kind)
    x = stored(rng.standard_normal((n, cols)), dtype)
    (y,) = native.rows(x, [weight]).run()
    close(y, wide(x) @ w.T)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", BITS)
def test_affine(bits: int, group: int, kind: str) -> None:
    rng = np.random.default_rng(bits)
    weight, w = affine(rng, 50, 384, bits, group, kind)
    for n in (1, 2, 20):
        x = stored(rng.standard_normal((n, 384)), "float32")
        (y,) = native.rows(x, [weight]).run()
        close(y, wide(x) @ w.T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: str) -> None:
    """Row r of 1..8, 9..25 and 300 rows equals the launch of that row alone, on every thread count and ISA."""
    rng = np.random.default_rng(1)
    matrices = [dense(rng, 70, 288, "bfloat16")[0], affine(rng, 30, 288, 4, 32, "bfloat16")[0]]
    x = stored(rng.standard_normal((300, 288)), dtype)
    alone = [native.rows(x[r : r + 1], matrices).run() for r in range(25)]
    for n in [*range(1, 26), 300]:
        together = (
            invariant(lambda n=n: native.rows(x[:n], matrices).run())
            if n in (1, 5, 25)
            else native.rows(x[:n], matrices).run()
        )
        for r in range(min(n, 25)):
            same_bits([y[r : r + 1] for y in together], alone[r])


def test_large_jobs_split_over_threads_without_changing_bits() -> None:
    rng = np.random.default_rng(2)
    matrices = [dense(rng, 513, 256, "float32")[0], dense(rng, 4, 256, "float32")[0]]
    for n in (1, 3, 140):
        x = stored(rng.standard_normal((n, 256)), "float32")
        invariant(lambda x=x: native.rows(x, matrices).run())


def test_not_a_number_stays() -> None:
    x = np.full((1, 32), np.nan, np.float32)
    (y,) = native.rows(x, [(np.ones((4, 32), np.float32),)]).run()
    assert np.isnan(y).all()
    (y,) = native.rows(stored(x, "bfloat16"), [(np.ones((4, 32), np.float32),)]).run()
    assert np.isnan(wide(y)).all()


def test_wrong_arguments_are_named() -> None:
    x = np.zeros((1, 64), np.float32)
    with pytest.raises(InvalidRequest, match=r"\[kernels.rows\] weight \[3, 32\], expected \[3, 64\]"):
        native.rows(x, [(np.zeros((3, 32), np.float32),)]).run()
    zeros = np.zeros((3, 2), np.float32)
    with pytest.raises(InvalidRequest, match="7 bits in groups of 32"):
        native.rows(x, [(np.zeros((3, 14), np.uint32), zeros, zeros, 7, 32)]).run()
    with pytest.raises(InvalidRequest, match="0 matrices"):
        native.rows(x, []).run()
