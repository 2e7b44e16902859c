"""The slab of hot rows: exact budget, exact records, and rows in use survive a scan."""

import _qwenmtp_testing
import numpy as np
import pytest

SET_BYTES = 8 * 8 + 16 + 8 * 8  # tags, clock, records of 8 bytes


@pytest.mark.parametrize("budget", [0, SET_BYTES - 1, SET_BYTES, 10 * SET_BYTES + 5, 1 << 20])
def test_the_slab_stays_within_its_budget(budget):
    rows = _qwenmtp_testing.HotRows(budget)
    assert rows.bytes == budget // SET_BYTES * SET_BYTES
    assert rows.capacity == budget // SET_BYTES * 8


def test_a_slab_of_nothing_finds_nothing():
    rows = _qwenmtp_testing.HotRows(0)
    rows.insert(3, 30)
    rows.clear()
    assert rows.find(3) is None


def test_found_records_are_the_inserted_ones():
    rng = np.random.default_rng(0)
    rows = _qwenmtp_testing.HotRows(50 * SET_BYTES)
    found = 0
    for row in rng.integers(0, 1200, 20_000).tolist():
        value = rows.find(row)
        if value is None:
            rows.insert(row, row * 7 + 1)
            assert rows.find(row) == row * 7 + 1
        else:
            found += 1
            assert value == row * 7 + 1
    assert 0.25 < found / 20_000 < 0.45  # 400 of 1,200 rows fit


def test_row_zero_and_a_refill_after_clear():
    rows = _qwenmtp_testing.HotRows(SET_BYTES)
    assert rows.find(0) is None
    rows.insert(0, 5)
    assert rows.find(0) == 5
    rows.clear()
    assert rows.find(0) is None
    rows.insert(0, 6)
    assert rows.find(0) == 6


def test_a_row_in_use_survives_a_scan_and_an_idle_one_does_not():
    rows = _qwenmtp_testing.HotRows(SET_BYTES)  # one set of eight
    for row in range(8):
        rows.insert(row, row)
    for new in range(100, 120):
        assert rows.find(3) == 3
        rows.insert(new, new)
    assert rows.find(3) == 3
    assert rows.find(4) is None
    assert sum(rows.find(new) is not None for new in range(100, 120)) == 7


def test_inserting_a_row_twice_keeps_one_copy():
    rows = _qwenmtp_testing.HotRows(SET_BYTES)
    for row in (1, 2, 3, 4, 5, 6, 7, 7, 8):
        rows.insert(row, row)
    assert [rows.find(row) for row in range(1, 9)] == list(range(1, 9))


@pytest.mark.parametrize("n", [0, 1, 2, 256, 257, 1000, 65536])
@pytest.mark.parametrize("highest", [1, 300, 2**29, 2**47], ids=str)
def test_unique_rows_are_sorted_and_point_back(n, highest):
    lookup = np.random.default_rng(n).integers(0, highest, n)
    rows, slots, first = _qwenmtp_testing.ple_unique_rows(lookup)
    expected, counts = np.unique(lookup, return_counts=True)
    assert rows == expected.tolist()
    assert slots == np.argsort(lookup, kind="stable").tolist()
    assert first == [0, *np.cumsum(counts).tolist()]
