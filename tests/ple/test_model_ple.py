"""The demo model behind every way of reading its table: same tokens, same state, counters that say how."""

import itertools
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qwenmtp
from qwenmtp import SamplingParams, Settings, _core, plan, table
from qwenmtp.weights import open_model_files

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
PROMPT = "def main(argv):\n    parser = argparse.ArgumentParser()\n"


def answer(model, temperature=0.0, tokens=40, mode="mtp", prompt=PROMPT):
    """The released ids, and the finished state."""
    session = model.session(mode=mode)
    params = SamplingParams(temperature=temperature, top_p=1.0, top_k=0, seed=3)
    ids = [i for r in session.generate(prompt, params, max_tokens=tokens, ignore_stop=True) for i in r.ids]
    assert session.last_turn.final["committed"]
    return ids, session._timeline.whole()


def load(folder=DEMO, **settings):
    return qwenmtp.load(folder, dtype="float32", **settings)


@pytest.fixture(scope="module")
def plain():
    with load() as model:
        yield model


WAYS = {
    "no cache, no threads": {"ple_hot_bytes": 0, "ple_threads": 0},
    "tiny cache, one thread": {"ple_hot_bytes": 3000, "ple_threads": 1},
    "no read-ahead": {"ple_lookahead": False},
    "no staging": {"ple_staging": False},
    "resident": {"ple_residency": "resident"},
    "auto": {"ple_residency": "auto"},
}


def prewarmed(model):
    """The receipt of a prewarm, once it has ended."""
    end = time.monotonic() + 30
    while not (receipt := model.info()["ngram_tables"][0]["prewarm"])["ended"]:
        assert time.monotonic() < end
        time.sleep(0.001)
    return receipt


def check_way(plain, way, tokens):
    with load(**WAYS[way]) as model:
        for temperature in (0.0, 0.6):
            ids, state = answer(model, temperature, tokens)
            plain_ids, plain_state = answer(plain, temperature, tokens)
            assert ids == plain_ids
            assert state.first_difference(plain_state) is None
        residency = "resident" if way in ("resident", "auto") else "ssd"
        assert [s["residency"] for s in model._engine.core.ple_stats] == [residency]


@pytest.mark.parametrize("way", WAYS)
def test_tokens_and_state_do_not_depend_on_how_rows_are_read(plain, way):
    check_way(plain, way, 40)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_300_tokens_do_not_depend_on_how_rows_are_read(plain, way):
    check_way(plain, way, 300)


@pytest.mark.slow
def test_residency_obsolete_flag_and_evaluation_select_nothing_else():
    """The seed's matrix: {ssd, resident} x {MTPLX_AR_PIPELINE unset, 1} x {sync, async} x {.6, 1.0}."""
    first: dict[tuple[float, str], Any] = {}
    for residency, flag, eager in itertools.product(("ssd", "resident"), (None, "1"), ("0", "1")):
        env = {"QWENMTP_PLE_RESIDENCY": residency, "QWENMTP_ASYNC_EVAL": eager, "QWENMTP_DTYPE": "float32"}
        settings = Settings.resolve(env | ({"MTPLX_AR_PIPELINE": flag} if flag else {}))
        with qwenmtp.load(DEMO, settings) as model:
            for temperature, mode in itertools.product((0.6, 1.0), ("ar", "mtp")):
                ids, state = answer(model, temperature, mode=mode)
                want_ids, want_state = first.setdefault((temperature, mode), (ids, state))
                assert ids == want_ids
                assert state.first_difference(want_state) is None
            assert model._engine.core.ple_stats[0]["residency"] == residency


@pytest.mark.parametrize("early", [True, False])
def test_only_the_first_chunk_may_wait_for_its_rows(early):
    """Every later chunk, every primary and every draft was requested before the forward that reads its rows, and with
    early_first_gather the first chunk too."""
    files = open_model_files(DEMO)
    ngram, _ = _core.ngram_tables(files.geometry, files.layout, files.files, files.tensors, files.quant)[0]
    with load(ple_hot_bytes=0, prefill_chunk=64, ple_early=early) as model:
        prompt = model.tokenizer.encode(PROMPT * 8)
        answer(model, tokens=30, prompt=prompt)
        stats = model._engine.core.ple_stats[0]
    start = np.full(2, files.geometry["eos"])
    first = np.unique(_core.ngram_rows(ngram, np.array(prompt[:64], np.int32), start))
    assert len(prompt) > 2 * 50
    assert stats["rows_cold"] == (0 if early else len(first))
    assert stats["rows_ahead"] > len(first)
    assert stats["failures"] == stats["requests_refused"] == 0


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(DEMO, tmp_path / "demo"))


def test_a_row_file_in_the_folder_is_used_and_gives_the_same(plain, copy):
    with load(copy) as model:
        answer(model)
        planar = model._engine.core.ple_stats[0]
    table.interleave(copy)
    with load(copy) as model:
        ids, state = answer(model)
        want_ids, want_state = answer(plain)
        assert ids == want_ids
        assert state.first_difference(want_state) is None
        stats = model._engine.core.ple_stats[0]
        assert 0 < 2 * stats["read_calls"] < planar["read_calls"]
        assert stats["failures"] == 0


def test_without_staging_rows_are_read_one_by_one_and_nothing_is_kept():
    with load(ple_staging=False) as model:
        session = model.session()
        list(session.generate("def f(x):", SamplingParams(temperature=0.0), max_tokens=12, ignore_stop=True))
        stats = session.last_turn.stats["ple"]
        assert stats["staging"] is False
        assert stats["rows_requested"] == 16 * stats["windows"]["tokens"] > 0
        assert stats["rows_hot"] == stats["rows_ahead"] == stats["requests"] == stats["rows_distinct"] == 0


def test_the_first_chunk_is_requested_before_anything_is_pulled():
    with load() as model:
        session = model.session()
        rounds = session.generate(PROMPT, SamplingParams(temperature=0.0), max_tokens=4, ignore_stop=True)
        assert model.info()["ngram_tables"][0]["requests"] == 1
        list(rounds)
        assert session.last_turn.stats["ple"]["rows_cold"] == 0
        rounds = session.generate([*session.ids, 1, 2, 3], SamplingParams(temperature=0.0), max_tokens=0)
        list(rounds)  # behind a live state the rows hash with its last ids
        assert session.last_turn.stats["ple"]["rows_cold"] == 0


@pytest.mark.parametrize(("wish", "share"), [("all", 1.0), ("off", 0.0), (1 << 20, None), ("auto", 1.0)])
def test_prewarm_reads_what_was_wished(wish, share):
    with load(ple_prewarm=wish) as model:
        receipt = prewarmed(model)
        wanted = 1 << 20 if share is None else share * plan.table_bytes(open_model_files(DEMO))
        assert receipt["wanted_bytes"] == receipt["read_bytes"] == wanted


def test_prewarm_leaves_a_resident_table_alone_and_survives_a_short_file(copy):
    with load(ple_residency="resident", ple_prewarm="all") as model:
        assert model.info()["ngram_tables"][0]["prewarm"]["wanted_bytes"] == 0
    report = table.interleave(copy)
    with load(copy, ple_prewarm="off") as model:
        os.truncate(report.path, 5000)
        model._engine.run(lambda: model._engine.core.prewarm(1 << 40))
        receipt = prewarmed(model)
        assert receipt["wanted_bytes"] == report.n_bytes
        assert receipt["read_bytes"] == 0


def test_loading_a_resident_table_is_part_of_the_progress():
    files = open_model_files(DEMO)
    seen = {}
    for residency in ("ssd", "resident"):
        with load(ple_residency=residency, on_progress=lambda *now: seen.__setitem__(now[1], now[0])):
            pass
    assert list(seen) == [files.n_bytes - plan.table_bytes(files), files.n_bytes]
    assert all(0.95 * total < done <= total for total, done in seen.items())
