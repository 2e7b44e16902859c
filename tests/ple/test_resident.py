"""A resident table: the same values, progress in bytes, a refusal with numbers."""

import _qwenmtp_testing
import numpy as np
import pytest

from qwenmtp import _core
from qwenmtp.errors import InsufficientMemory, PleReadError

FLOAT32 = _core.RowType.float32
CONFIG = {"vocab": 50, "ngram_size": 3, "heads_per_ngram": 1, "multipliers": [1, 3, 5], "eos": 7}


def config(rows):
    return _core.NgramConfig(sizes=[rows // 2] * 2, offsets=[0, rows // 2], **CONFIG)


@pytest.mark.parametrize("n_threads", [0, 1, 8])
@pytest.mark.parametrize("coding", ["affine", "bf16", "fp8"])
def test_resident_equals_ssd(make_table, n_threads, coding):
    table = make_table(coding, shard_rows=(7, 20_000, 30_000))
    ids, past = np.random.default_rng(0).integers(0, 50, 700).astype(np.int32), np.array([7, 7])
    ssd = _core.PleStager(config(50_007), table.spec, n_threads=n_threads)
    resident = _core.PleStager(config(50_007), table.spec, n_threads=n_threads, resident_budget=table.records.nbytes)
    np.testing.assert_array_equal(resident.embed(ids, past, FLOAT32), ssd.embed(ids, past, FLOAT32))
    resident.request(ids, past)
    stats = resident.stats()
    assert stats["residency"] == "resident"
    assert ssd.stats()["residency"] == "ssd"
    assert stats["rows_requested"] == 1400
    assert stats["rows_distinct"] == stats["read_calls"] == stats["requests"] == 0


def test_progress_goes_from_nothing_to_all(make_table):
    table = make_table("affine", bits=2, dim=32, shard_rows=(2_500_000,))
    seen = _qwenmtp_testing.ple_resident_progress(table.spec, table.records.nbytes, 1)
    done, totals = zip(*seen, strict=True)
    assert set(totals) == {table.records.nbytes}
    assert done[0] == 0
    assert done[-1] == table.records.nbytes
    assert len(done) == 4
    assert list(done) == sorted(set(done))


def test_a_table_over_the_budget_is_refused_with_the_numbers(make_table):
    table = make_table()
    with pytest.raises(InsufficientMemory, match="has 100000 bytes, expected at most 99999"):
        _core.PleStager(config(1000), table.spec, resident_budget=99_999)


@pytest.mark.parametrize("n_threads", [0, 4])
def test_a_failed_load_is_typed(make_table, n_threads):
    table = make_table(shard_rows=(40_000,))
    try:
        _qwenmtp_testing.ple_fault("eio", after=3)
        with pytest.raises(PleReadError, match="Input/output"):
            _qwenmtp_testing.ple_resident_progress(table.spec, 1 << 30, n_threads)
    finally:
        _qwenmtp_testing.ple_fault("none")
