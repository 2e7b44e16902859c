"""What the stager returns depends on the ids alone, whatever was cached, requested or failed before."""

import os

import _qwenmtp_testing
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwenmtp import _core
from qwenmtp.errors import InvalidRequest, ModelFormatError, PleReadError

VOCAB, EOS = 50, 7
FLOAT32, BFLOAT16 = _core.RowType.float32, _core.RowType.bfloat16
SET_BYTES = 8 * 8 + 16 + 8 * 100  # of the hot slab: tags, clock, records of 4-bit rows of 160


def ngram(base=60, heads_per_ngram=8):
    sizes, offsets = _core.ngram_heads(base, 2 * heads_per_ngram, 0)
    multipliers = _core.ngram_multipliers(1234, VOCAB, 3, 0)
    fields = {"vocab": VOCAB, "ngram_size": 3, "heads_per_ngram": heads_per_ngram, "eos": EOS}
    return _core.NgramConfig(multipliers=multipliers, sizes=sizes, offsets=offsets, **fields)


def text(n, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, n).astype(np.int32)


START = np.array([EOS, EOS])


@pytest.fixture
def table(make_table):
    return make_table(shard_rows=(1000, 801))


def rows_of(ids, history=START):
    return _core.ngram_rows(ngram(), ids, history)


def expected(table, ids, history=START):
    return table.float32[rows_of(ids, history)].reshape(len(ids), -1)


def test_embedding_is_the_rows_in_head_order(table):
    stager = _core.PleStager(ngram(), table.spec)
    ids, history = text(33), np.array([EOS, 3])
    got = stager.embed(ids, history, FLOAT32)
    assert got.shape == (33, 16 * 160)
    np.testing.assert_array_equal(got, expected(table, ids, history))
    wanted = table.bfloat16[rows_of(ids, history)].reshape(33, -1)
    np.testing.assert_array_equal(stager.embed(ids, history, BFLOAT16), wanted)
    assert stager.embed(ids[:0], history, FLOAT32).shape == (0, 16 * 160)


spans = st.tuples(st.integers(0, 200), st.integers(1, 40), st.booleans())
steps = st.lists(
    st.one_of(
        st.tuples(st.just("embed"), spans),
        st.tuples(st.just("request"), spans),
        st.tuples(st.just("cancel"), st.none()),
        st.tuples(st.just("clear_hot"), st.none()),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, n_threads=st.sampled_from([0, 1, 8]), hot=st.sampled_from([0, 3 * SET_BYTES, 1 << 20]))
def test_results_are_the_same_whatever_came_before(table, steps, n_threads, hot):
    stager = _core.PleStager(ngram(), table.spec, n_threads=n_threads, hot_bytes=hot)
    whole = text(600)
    for step, span in steps:
        if span is None:
            getattr(stager, step)()
            continue
        start, length, wide = span
        ids = whole[start : start + length * (10 if wide else 1)]
        history = whole[start - 2 : start].astype(np.int64) if start >= 2 else START
        if step == "request":
            stager.request(ids, history)
        else:
            np.testing.assert_array_equal(stager.embed(ids, history, FLOAT32), expected(table, ids, history))
    stats = stager.stats()
    assert stats["rows_distinct"] == stats["rows_hot"] + stats["rows_ahead"] + stats["rows_cold"]


@pytest.mark.parametrize("n_threads", [0, 8])
def test_a_span_longer_than_one_block(table, n_threads):
    stager = _core.PleStager(ngram(), table.spec, n_threads=n_threads)
    ids = text(9000)
    stager.request(ids, START)
    np.testing.assert_array_equal(stager.embed(ids, START, BFLOAT16), table.bfloat16[rows_of(ids)].reshape(9000, -1))


def test_rows_are_counted_by_cause(table):
    stager = _core.PleStager(ngram(), table.spec, n_threads=0)
    ids = text(100)
    distinct = len(np.unique(rows_of(ids)))
    stager.embed(ids, START, FLOAT32)
    stager.embed(ids, START, FLOAT32)
    stats = stager.stats()
    assert stats["rows_requested"] == 2 * 100 * 16
    assert stats["rows_cold"] == distinct
    assert stats["rows_hot"] == distinct
    assert stats["rows_ahead"] == 0
    assert stats["windows"]["calls"] == 2
    assert stats["windows"]["tokens"] == 200
    assert 0 < stats["windows"]["stall_ns"] <= stats["windows"]["stage_ns"]
    assert stats["chunks"]["calls"] == 0
    stager.clear_hot()
    in_chunk = len(np.unique(rows_of(text(257))))
    for n in (1, 2):  # a chunk leaves nothing in the hot slab
        stager.embed(text(257), START, FLOAT32)
        stats = stager.stats()
        assert stats["chunks"]["tokens"] == n * 257
        assert stats["rows_cold"] == distinct + n * in_chunk
    stager.embed(text(256), START, FLOAT32)
    stager.embed(text(257), START, FLOAT32)
    assert stager.stats()["rows_hot"] == distinct + len(np.unique(rows_of(text(256))))


def test_reads_are_counted_and_neighbours_share_one(table):
    """Rows of one head lie within a page here, so a whole embed needs few calls."""
    stager = _core.PleStager(ngram(), table.spec, n_threads=0, hot_bytes=0)
    stager.embed(text(300), START, FLOAT32)
    stats = stager.stats()
    assert 0 < stats["read_calls"] < 60
    assert stats["read_bytes"] >= stats["rows_cold"] * 100


@pytest.mark.parametrize("hot_bytes", [0, 1 << 20])
def test_requested_rows_are_served_from_what_was_read_ahead(table, hot_bytes):
    stager = _core.PleStager(ngram(), table.spec, n_threads=2, hot_bytes=hot_bytes)
    ids = text(40)
    stager.request(ids[:20], START)
    stager.request(ids[20:30], ids[18:20].astype(np.int64))
    stager.request(ids[20:30], ids[18:20].astype(np.int64))
    stager.embed(ids, START, FLOAT32)
    stats = stager.stats()
    ahead = len(np.unique(rows_of(ids[:30])))
    assert stats["requests"] == 3
    assert stats["rows_ahead"] == ahead
    assert stats["rows_cold"] == len(np.unique(rows_of(ids))) - ahead
    assert stats["rows_dropped"] == 0


def test_a_request_for_other_ids_serves_nothing_and_is_dropped_after_two_embeds(table):
    stager = _core.PleStager(ngram(), table.spec, n_threads=2, hot_bytes=0)
    ids, other, past = np.array([1, 2, 3], np.int32), np.array([42, 43], np.int32), np.array([40, 41])
    assert len(np.intersect1d(rows_of(other, past), rows_of(ids))) == 0
    stager.request(other, past)
    stager.embed(ids, START, FLOAT32)
    assert stager.stats()["rows_dropped"] == 0
    stager.embed(ids, START, FLOAT32)
    assert stager.stats()["rows_dropped"] == len(np.unique(rows_of(other, past)))
    assert stager.stats()["rows_ahead"] == 0


def test_the_next_chunk_survives_the_embed_of_this_one(table):
    stager = _core.PleStager(ngram(), table.spec, n_threads=2, hot_bytes=0)
    ids = text(600)
    now, later, between = ids[:300], ids[300:], ids[298:300].astype(np.int64)
    stager.request(later, between)
    stager.embed(now, START, FLOAT32)
    cold = stager.stats()["rows_cold"]
    stager.embed(later, between, FLOAT32)
    assert stager.stats()["rows_cold"] == cold


def test_cancel_drops_what_was_requested(table):
    stager = _core.PleStager(ngram(), table.spec, n_threads=2, hot_bytes=0)
    ids = text(20)
    stager.request(ids, START)
    stager.cancel()
    stager.embed(ids, START, FLOAT32)
    stats = stager.stats()
    assert stats["rows_ahead"] == 0
    assert stats["rows_dropped"] == stats["rows_cold"]


def test_requests_beyond_the_bound_are_refused_and_harmless(table):
    stager = _core.PleStager(ngram(), table.spec, n_threads=1, hot_bytes=0)
    whole = text(4000)
    for start in range(2, 3000, 10):
        stager.request(whole[start : start + 3], whole[start - 2 : start].astype(np.int64))
    np.testing.assert_array_equal(stager.embed(whole, START, FLOAT32), expected(table, whole))


def test_requests_are_checked_like_embeds(table):
    stager = _core.PleStager(ngram(), table.spec)
    for call in (stager.request, lambda *a: stager.embed(*a, FLOAT32)):
        with pytest.raises(InvalidRequest, match="token id"):
            call(np.array([VOCAB], np.int32), START)
        with pytest.raises(InvalidRequest, match="history"):
            call(np.array([1], np.int32), np.array([EOS]))


def test_wrong_options_and_geometry_are_refused(make_table):
    table = make_table()
    with pytest.raises(ModelFormatError, match="head"):
        _core.PleStager(ngram(), table.spec)
    for n_threads in (-1, 33):
        with pytest.raises(InvalidRequest, match="threads"):
            _core.PleStager(ngram(base=30), table.spec, n_threads=n_threads)


@pytest.fixture
def fault():
    yield _qwenmtp_testing.ple_fault
    _qwenmtp_testing.ple_fault("none")


def faulty(table, n_threads=2, hot_bytes=1 << 20):
    return _qwenmtp_testing.FaultyStager(ngram(), table.spec, n_threads=n_threads, hot_bytes=hot_bytes)


@pytest.mark.parametrize("n_threads", [0, 1, 8])
@pytest.mark.parametrize("name", ["partial", "eintr"])
def test_interrupted_and_partial_reads_are_resumed(table, fault, n_threads, name):
    stager = faulty(table, n_threads)
    fault(name, after=1, times=5)
    ids = text(60)
    np.testing.assert_array_equal(stager.embed(ids, START), expected(table, ids))
    assert stager.failures == 0


@pytest.mark.parametrize("n_threads", [0, 1, 8])
@pytest.mark.parametrize(("name", "fact"), [("eio", "Input/output error"), ("eof", "end of file")])
@pytest.mark.parametrize("after", [0, 2])
def test_a_failed_read_is_typed_and_the_next_embed_is_whole(table, fault, n_threads, name, fact, after):
    stager = faulty(table, n_threads)
    ids = text(60)
    fault(name, after=after)
    with pytest.raises(PleReadError, match=fact):
        stager.embed(ids, START)
    assert stager.failures == 1
    fault("none")
    np.testing.assert_array_equal(stager.embed(ids, START), expected(table, ids))


@pytest.mark.parametrize("name", ["eio", "eof"])
def test_a_failed_read_ahead_is_read_again(table, fault, name):
    stager = faulty(table)
    ids = text(60)
    fault(name)
    stager.request(ids, START)
    stager.request(ids[:5], np.array([1, 2]))
    with pytest.raises(PleReadError):
        stager.embed(ids, START)
    fault("none")
    np.testing.assert_array_equal(stager.embed(ids, START), expected(table, ids))
    fault(name, times=1)
    other = text(60, seed=9)
    stager = faulty(table)
    stager.request(other, START)
    np.testing.assert_array_equal(stager.embed(other, START), expected(table, other))
    assert stager.failures == 0


def test_three_failures_in_a_row_retire_the_table(table, fault):
    stager = faulty(table)
    ids = text(10)
    fault("eio")
    for _ in range(2):
        with pytest.raises(PleReadError, match="Input/output"):
            stager.embed(ids, START)
    fault("none")
    stager.embed(ids, START)
    fault("eio")
    other = text(200, seed=3)
    for _ in range(3):
        with pytest.raises(PleReadError, match="Input/output"):
            stager.embed(other, START)
    fault("none")
    with pytest.raises(PleReadError, match="3 reads in a row"):
        stager.embed(ids, START)


def test_a_file_truncated_in_use_fails_and_heals(table):
    stager = _core.PleStager(ngram(), table.spec, hot_bytes=0)
    ids = text(60)
    whole = table.paths[0].read_bytes()
    with table.paths[0].open("r+b") as f:
        f.truncate(4000)
        with pytest.raises(PleReadError, match="end of file"):
            stager.embed(ids, START, FLOAT32)
        f.seek(0)
        f.write(whole)
        f.flush()
        os.fsync(f.fileno())
    np.testing.assert_array_equal(stager.embed(ids, START, FLOAT32), expected(table, ids))
