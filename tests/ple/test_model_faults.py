"""Reads that fail under a whole model: a typed error, the live state untouched, and the next turn as if nothing was."""

import os
import shutil
from pathlib import Path

import _qwenmtp_testing
import mlx.core as mx
import pytest

import qwenmtp
from qwenmtp import SamplingParams, _core, table
from qwenmtp.errors import ModelFormatError, PleReadError

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
PROMPT = "def main(argv):\n    parser = argparse.ArgumentParser()\n"
GREEDY = SamplingParams(temperature=0.0)
FIRST, SECOND = 8, 24  # tokens of the turn that is kept and of the one that fails


def load(folder=DEMO, **settings):
    return qwenmtp.load(folder, dtype="float32", ple_prewarm="off", **settings)


def turn(session, prompt, n):
    return [i for r in session.generate(prompt, GREEDY, max_tokens=n, ignore_stop=True) for i in r.ids]


@pytest.fixture(scope="module")
def fresh():
    """Ids and state of both turns without any fault."""
    with load() as model:
        session = model.session()
        ids = turn(session, PROMPT, FIRST)
        yield ids, turn(session, session.ids, SECOND), session._timeline.whole()


@pytest.fixture
def fault(monkeypatch):
    """Models loaded in the test read through faults that this sets."""
    monkeypatch.setattr(_core, "Model", _qwenmtp_testing.Model)
    yield _qwenmtp_testing.ple_fault
    _qwenmtp_testing.ple_fault("none")


def check_a_failed_turn(session, fresh, fail, heal, fact):
    """A turn during which `fail` struck; `heal` ends the fault."""
    first, second, state = fresh
    assert turn(session, PROMPT, FIRST) == first
    before = session.fork()
    rounds = session.generate(session.ids, GREEDY, max_tokens=SECOND, ignore_stop=True)
    fail(rounds)
    with pytest.raises(PleReadError, match=fact) as failed:
        list(rounds)
    assert failed.value.code == "ple_read_error"
    assert session.ids == before.ids
    assert session.first_difference(before) is None
    heal()
    assert turn(session, session.ids, SECOND) == second
    assert session._timeline.whole().first_difference(state) is None


@pytest.mark.parametrize("n_threads", [0, 8])
@pytest.mark.parametrize(("name", "fact"), [("eio", "Input/output error"), ("eof", "end of file")])
def test_a_read_that_fails_during_decode(fresh, fault, name, fact, n_threads):
    def fail(rounds):
        next(rounds)
        fault(name)

    with load(ple_hot_bytes=0, ple_threads=n_threads) as model:
        check_a_failed_turn(model.session(), fresh, fail, lambda: fault("none"), fact)


@pytest.mark.parametrize("reads_before", [0, 40])
def test_a_read_that_fails_during_prefill(fresh, fault, reads_before):
    first, second, _ = fresh
    with load(ple_hot_bytes=0, ple_early=False, ple_threads=0, prefill_chunk=8) as model:
        session = model.session()
        fault("eio", after=reads_before)
        with pytest.raises(PleReadError):
            turn(session, PROMPT, FIRST)
        assert session.ids == []
        fault("none")
        with load(prefill_chunk=8) as other:
            whole = other.session()
            assert turn(session, PROMPT, FIRST) == turn(whole, PROMPT, FIRST) == first
            assert session.first_difference(whole) is None
            assert turn(session, session.ids, SECOND) == second


@pytest.mark.parametrize("name", ["partial", "eintr"])
def test_short_and_interrupted_reads_are_finished(fresh, fault, name):
    first, second, state = fresh
    with load(ple_hot_bytes=0) as model:
        fault(name, after=3, times=400)
        session = model.session()
        assert turn(session, PROMPT, FIRST) == first
        assert turn(session, session.ids, SECOND) == second
        assert session._timeline.whole().first_difference(state) is None
        assert session.last_turn.stats["ple"]["failures"] == 0


def test_three_failed_turns_retire_the_table(fault):
    with load(ple_hot_bytes=0, ple_early=False) as model:
        session = model.session()
        fault("eio")
        for _ in range(3):
            with pytest.raises(PleReadError, match="Input/output"):
                turn(session, PROMPT, 1)
        fault("none")
        with pytest.raises(PleReadError, match="3 reads in a row failed"):
            turn(session, PROMPT, 1)
        assert session.ids == []


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(DEMO, tmp_path / "demo"))


def test_a_table_truncated_during_decode(fresh, copy):
    path = copy / "ngram-table.safetensors"
    whole = path.read_bytes()

    def fail(rounds):
        next(rounds)
        os.truncate(path, 5000)

    with load(copy, ple_hot_bytes=0) as model:
        check_a_failed_turn(model.session(), fresh, fail, lambda: path.write_bytes(whole), "end of file")


def test_a_flipped_byte_of_a_row_file_during_decode(fresh, copy):
    path = Path(table.interleave(copy).path)
    whole = path.read_bytes()

    def fail(rounds):
        next(rounds)
        damaged = bytearray(whole)
        for block in range(1, len(whole) // 4096):
            damaged[4096 * block + 7] ^= 1
        path.write_bytes(damaged)

    with load(copy, ple_hot_bytes=0) as model:
        check_a_failed_turn(model.session(), fresh, fail, lambda: path.write_bytes(whole), "checksum")


def test_the_row_file_of_another_model_is_refused_at_load(copy, tmp_path):
    side = copy / "ngram-table.safetensors"
    data = bytearray(side.read_bytes())
    data[-1] ^= 1
    side.write_bytes(data)
    foreign = table.interleave(copy, tmp_path / "foreign.rows").path
    with pytest.raises(ModelFormatError, match="made from this table"):
        load(ple_row_file=foreign)
    with load(copy, ple_row_file=foreign) as model:
        assert len(turn(model.session(), PROMPT, 2)) == 2


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_fifty_cancelled_prefills_leave_memory_flat(how):
    with load(prefill_chunk=16, prefill_fused_suffix_max=0) as model:
        session = model.session()
        turn(session, PROMPT, 4)
        before, held = session.fork(), []
        prompt = session.ids + model.tokenizer.encode("import os\n" * 100)
        for _ in range(50):
            seen = []

            def progress(done, _total, seen=seen):
                seen.append(done)
                if len(seen) == 2:
                    session.cancel()
                    if how == "close":
                        raise KeyboardInterrupt

            rounds = session.generate(prompt, GREEDY, max_tokens=4, on_progress=progress)
            if how == "close":
                with pytest.raises(KeyboardInterrupt):
                    list(rounds)
            else:
                assert list(rounds) == []
                assert session.last_turn.finish == "cancelled"
            del rounds
            held.append(mx.get_active_memory())
        assert len(seen) >= 2
        # MLX counts malloc_usable_size, which depends on the hole or the pages a block was put into. The rows of one
        # prefill that stayed each time would be fifty times 16 KB.
        assert max(held) - min(held) <= 4 * 4096
        assert session.first_difference(before) is None
