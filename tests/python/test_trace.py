"""QWENMTP_TRACE: a Perfetto file of rounds, forwards, reads and waits; without it no file."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import qwenmtp
from qwenmtp import SamplingParams
from qwenmtp.errors import IoError
from qwenmtp.settings import Settings

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
PROMPT = [699, 579, 207, 12]


def traced(file: Path, **session: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The spans of one answer, and its statistics."""
    with qwenmtp.load(DEMO, Settings.resolve({"QWENMTP_TRACE": str(file)}, pack=DEMO)) as model:
        s = model.session(context_copy=False, **session)
        for _ in s.generate(PROMPT, SamplingParams(temperature=0), max_tokens=9, ignore_stop=True):
            pass
        assert s.last_turn is not None
        stats = s.last_turn.stats
    return [e for e in json.loads(file.read_text()) if e["ph"] == "X"], stats


def inside(event: dict[str, Any], outer: dict[str, Any]) -> bool:
    start, end = event["ts"], event["ts"] + event["dur"]
    return bool(
        event["tid"] == outer["tid"] and outer["ts"] <= start and end <= outer["ts"] + outer["dur"] + 0.002
    )  # a nanosecond of rounding at each end


def test_a_trace_shows_what_an_answer_did(tmp_path: Path) -> None:
    events, stats = traced(tmp_path / "trace.json", depth=2)
    names = Counter(e["name"] for e in events)
    assert [e["args"]["n"] for e in events if e["name"] == "round"] == list(range(1, stats["rounds"] + 1))
    assert names["draft"] == stats["drafted_tokens"]
    assert names["finish"] == 1
    forwards = [e["args"]["n"] for e in events if e["name"] == "forward"]
    assert sum(forwards[:2]) == len(PROMPT)
    assert len(forwards) == 2 + stats["verify_calls"]
    assert forwards[2:6] == [3, 3, 3, 3]  # the primary and two drafts
    assert names["read"] > 0
    assert names["rows"] == stats["ple"]["windows"]["calls"]
    phases = [e for e in events if e["name"] in ("step", "prefill", "finish")]
    for event in events:
        assert event["dur"] >= 0
        if event["name"] in ("round", "forward", "draft", "sync"):
            assert any(inside(event, outer) for outer in phases), event
    threads = {e["tid"] for e in events if e["name"] == "round"}
    assert len(threads) == 1
    assert {e["tid"] for e in events if e["name"] == "read"} - threads, "no read on a thread of the pool"


def test_plain_decoding_forwards_one_row_a_round(tmp_path: Path) -> None:
    events, _ = traced(tmp_path / "trace.json", mode="ar")
    assert [e["args"]["n"] for e in events if e["name"] == "forward"][2:] == [1] * 9
    assert not any(e["name"] in ("draft", "history") for e in events)


def test_two_models_share_the_file_until_the_last_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with qwenmtp.load(DEMO, trace=str(file)) as first:
        with qwenmtp.load(DEMO, trace=str(file)):
            pass
        assert list(first.session(mode="ar").generate(PROMPT, SamplingParams(temperature=0), max_tokens=2))
    assert sum(e["name"] == "round" for e in json.loads(file.read_text())) >= 2


def test_a_trace_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IoError, match=r"trace\.open"):
        qwenmtp.load(DEMO, trace=str(tmp_path / "missing" / "trace.json"))


def test_nothing_is_written_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with qwenmtp.load(DEMO, Settings.resolve({}, pack=DEMO)) as model:
        s = model.session()
        assert list(s.generate(PROMPT, SamplingParams(temperature=0), max_tokens=2))
    assert list(tmp_path.iterdir()) == []
