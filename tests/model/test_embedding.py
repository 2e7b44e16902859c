"""csrc/model/embedding.cpp, csrc/kernels/embed.cpp: rows of dense and packed tables; bits are MLX's."""

import numpy as np
import pytest
from kernels.launch import DTYPES, invariant, native, rounding, same_bits, stored, wide
from kernels.test_rows import BITS, affine, dense
from oracle.naive_rows import codes

from qwenmtp.errors import InvalidRequest

IDS = [3, 0, 49, 3]


def check(table: tuple, rows: np.ndarray, dtype: str) -> None:
    """Rows IDS of a table, once and three times side by side."""
    for copies in (1, 3):
        got = invariant(lambda n=copies: [native.embedding(table, IDS, n, dtype == "bfloat16")])
        same_bits(got, [np.tile(stored(rows[IDS], dtype), copies)])


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dense(dtype: str, kind: str) -> None:
    table, rows = dense(np.random.default_rng(1), 50, 37, kind)
    check(table, rows, dtype)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed(dtype: str, bits: int, group: int, kind: str) -> None:
    table, _ = affine(np.random.default_rng(bits), 50, 128, bits, group, kind)
    words, scales, biases = table[:3]
    # mx.dequantize: product and sum each rounded to the type of the values.
    rnd = rounding(dtype) if dtype == "bfloat16" else lambda v: np.float32(v).astype(np.float64)
    group_of = np.arange(128) // group
    product = rnd(wide(scales)[:, group_of] * codes(words, bits))
    check(table, rnd(product + wide(biases)[:, group_of]), dtype)


@pytest.mark.parametrize("id", [-1, 50])
def test_an_id_out_of_range_is_refused(id: int) -> None:
    table, _ = dense(np.random.default_rng(1), 50, 8, "float32")
    with pytest.raises(InvalidRequest, match=r"token id -?\d+, expected 0 .. 49"):
        native.embedding(table, [1, id], 1, False)


@pytest.mark.parametrize("width", [0, 8])
def test_a_draw_from_a_row_of_nan_reads_the_first_row(width: int) -> None:
    """Its id is -1: the host, which draws again, raises; nothing is read outside the table until then."""
    rng = np.random.default_rng(1)
    table = (affine(rng, 50, 128, width, 32, "bfloat16") if width else dense(rng, 50, 128, "float32"))[0]
    want = native.embedding(table, [0, 3], 1, False)
    same_bits([native.embedding_chosen(table, np.array([-1, 3], np.int32), False)], [want])
