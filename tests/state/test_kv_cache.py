"""Rows are written where they belong: MLX copies a whole slab when anything else holds it while it is written."""

from pathlib import Path

import _qwenmtp_testing as core
import pytest

from qwenmtp import _core
from qwenmtp.weights import open_model_files

SMALL = Path(__file__).resolve().parents[1] / "golden" / "model" / "small"
LEN = 600  # slabs of 1,024 rows; MLX may share what is less than 16 KiB larger than its view


@pytest.fixture(scope="module")
def sequence():
    m = open_model_files(SMALL)
    sequence = core.Sequence(_core.Model(m.geometry, m.layout, m.files, m.tensors, m.quant, True))
    sequence.forward([i % 50 for i in range(LEN)])
    return sequence


def test_a_token_copies_no_slab(sequence) -> None:
    """Once the open block's raw keys were a view of their slab, and a token copied it: a third of a step behind 32k."""
    before = sequence.slabs()
    for token in range(9):  # twice over every fill of a block
        sequence.forward([token])
        assert sequence.slabs() == before


def test_a_window_that_gives_rows_back_copies_no_slab(sequence) -> None:
    before = sequence.slabs()
    for kept in (1, 2, 4, 3, 1, 4, 2, 6):
        sequence.forward([2] * 6, window=True)
        sequence.commit(kept)
        assert sequence.slabs() == before
