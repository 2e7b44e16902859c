"""The slab of hot rows never outgrows its table, and the plan says so."""

from pathlib import Path

import qwenmtp
from qwenmtp.plan import memory_plan
from qwenmtp.weights import open_model_files

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"


def plan(hot_bytes: int) -> int:
    return memory_plan(open_model_files(DEMO), context=64, dtype="float32", hot_bytes=hot_bytes, chunk=64).hot_rows


def test_a_large_budget_is_cut_to_two_slots_a_row() -> None:
    staged = plan(0)
    rows = next(s[0] for n, _, s, *_ in open_model_files(DEMO).tensors if n.startswith("ngram.") and "weight" in n)
    table = (DEMO / "ngram-table.safetensors").stat().st_size
    assert plan(1 << 20) - staged == 1 << 20
    assert 2 * (table + 10 * rows) - 1000 < plan(1 << 30) - staged == plan(1 << 40) - staged < 2 * (table + 10 * rows)


def test_rows_are_kept_in_the_smaller_slab() -> None:
    with qwenmtp.load(DEMO, ple_hot_bytes=1 << 40) as model:  # more than this machine could give
        session = model.session(mode="ar")
        for _ in session.generate([1, 2, 3], qwenmtp.SamplingParams(temperature=0), max_tokens=4, ignore_stop=True):
            pass
        again = model.session(mode="ar")
        for _ in again.generate([1, 2, 3], qwenmtp.SamplingParams(temperature=0), max_tokens=4, ignore_stop=True):
            pass
        assert again.last_turn is not None
        stats = again.last_turn.stats["ple"]
    assert stats["rows_hot"] == stats["rows_distinct"]
