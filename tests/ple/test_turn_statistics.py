"""What one answer's n-gram rows cost, in Turn.stats: its own calls and nobody else's."""

import json
from pathlib import Path

import qwenmtp
from qwenmtp import SamplingParams
from qwenmtp.cli import main

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
GREEDY = SamplingParams(temperature=0.0)
COUNTERS = ("rows_requested", "rows_distinct", "rows_hot", "rows_ahead", "rows_cold", "read_calls", "read_bytes")


def counters(stats):
    spans = {f"{span}.{name}": n for span in ("windows", "chunks") for name, n in stats[span].items()}
    return {name: stats[name] for name in COUNTERS} | spans


def test_interleaved_answers_are_charged_apart_and_add_up():
    with qwenmtp.load(DEMO, dtype="float32", prefill_chunk=300) as model:
        long = model.tokenizer.encode("import os\n" * 150)
        sessions = [model.session(), model.session(mode="ar")]
        running = [
            sessions[0].generate(long, GREEDY, max_tokens=20, ignore_stop=True),
            sessions[1].generate("def f(x):", GREEDY, max_tokens=20, ignore_stop=True),
        ]
        while running:
            running = [rounds for rounds in running if next(rounds, None) is not None]
        turns = [s.last_turn for s in sessions]
        total = counters(model._engine.core.ple_stats[0])
        parts = [counters(t.stats["ple"]) for t in turns]
        assert {name: sum(p[name] for p in parts) for name in total} == total
        assert parts[0]["chunks.tokens"] == (len(long) - 1) // 300 * 300
        assert parts[1]["chunks.calls"] == 0
        for session, part in zip(sessions, parts, strict=True):
            assert part["rows_requested"] == 16 * (part["windows.tokens"] + part["chunks.tokens"])
            assert part["rows_distinct"] == part["rows_hot"] + part["rows_ahead"] + part["rows_cold"]
            assert part["windows.tokens"] + part["chunks.tokens"] >= len(session.ids)
        assert [t.stats["lane"] for t in turns] == ["capture_commit", "ar"]


def test_residency_lane_and_staging_in_force_are_reported():
    with qwenmtp.load(DEMO, dtype="float32", ple_residency="resident", verify_capture_commit=False) as model:
        session = model.session()
        list(session.generate("def f(x):", GREEDY, max_tokens=6))
        stats = session.last_turn.stats
        assert stats["lane"] == "reforward"
        assert stats["ple"]["residency"] == "resident"
        assert stats["ple"]["staging"] is True
        assert stats["ple"]["rows_requested"] > 0
        assert stats["ple"]["rows_distinct"] == stats["ple"]["read_calls"] == 0


def test_generate_json_carries_them(capsys):
    assert main(["generate", "--model", str(DEMO), "--ids", "1,2,3", "--max-tokens", "4", "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)["stats"]
    assert stats["ple"]["residency"] == "ssd"
    assert stats["ple"]["rows_requested"] >= 16 * 3
    assert stats["ple"]["windows"]["stall_ns"] > 0
