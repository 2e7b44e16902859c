"""`qwenmtp verify` passes on a sound engine and says where an unsound one goes wrong."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from qwenmtp import Model, verify
from qwenmtp.cli import main

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "PROMPTS", verify.PROMPTS[:1])
    monkeypatch.setattr(verify, "TOKENS", 10)
    monkeypatch.setattr(verify, "LAW_SEEDS", 80)


def failed(model: Model) -> list[str]:
    return [c.name for c in verify.verify(model).checks if not c.passed]


def test_every_check_passes_on_the_demo(demo: Model) -> None:
    seen: list[verify.Check] = []
    report = verify.verify(demo, seen.append)
    assert report.passed, [c for c in report.checks if not c.passed]
    assert list(report.checks) == seen
    assert len(seen) == 15
    assert all(c.cases > 0 for c in seen)


def test_a_drafted_answer_that_differs_is_named(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = verify._answer

    def wrong(session: Any, ids: Any, *rest: Any, **options: Any) -> tuple[int, ...]:
        found = plain(session, ids, *rest, **options)
        drafted = session.depth == 2 and session.mode == "mtp"
        return (found[0] ^ 1, *found[1:]) if found and drafted else found

    monkeypatch.setattr(verify, "_answer", wrong)
    names = failed(demo)
    assert "greedy drafting at depth 2 = greedy plain decoding" in names
    assert "greedy drafting at depth 1 = greedy plain decoding" not in names


def test_a_law_that_always_takes_the_likelier_token_is_refused(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = verify._answer

    def greedy(session: Any, ids: Any, params: Any = verify.GREEDY, n: int = verify.TOKENS) -> tuple[int, ...]:
        return plain(session, ids, verify.GREEDY, n)

    monkeypatch.setattr(verify, "_answer", greedy)
    assert "ar: sampled law = exact enumeration" in failed(demo)


def test_an_answer_without_probability_is_refused() -> None:
    check = verify._chi_square("law", {(1,): 0.5, (2,): 0.5}, Counter({(1,): 10, (3,): 1}))
    assert not check.passed
    assert "[3]" in check.detail


def test_a_kept_state_that_differs_is_named(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_state_difference", lambda *_: (False, "trunk.0.gdn_ssm[5]: 1, 2"))
    checks = {c.name: c for c in verify.verify(demo).checks}
    check = checks["mtp: a warm turn = a cold one, ids and state"]
    assert not check.passed
    assert check.detail == "trunk.0.gdn_ssm[5]: 1, 2"


def test_the_command_exits_with_1_and_lists_every_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = verify.VerifyReport((verify.Check("a", True, 3), verify.Check("b", False, 2, "token 4")), 1.0)
    monkeypatch.setattr("qwenmtp.commands.verify", lambda model, show: report)
    assert main(["verify", "--model", str(DEMO), "--json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert out["passed"] is False
    assert out["checks"][1] == {"name": "b", "passed": False, "cases": 2, "detail": "token 4"}
