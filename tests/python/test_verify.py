"""`qwenmtp verify` passes on a sound engine and says where an unsound one goes wrong."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import _qwenmtp_testing as testing
import pytest

from qwenmtp import Model, sessions, verify
from qwenmtp.cli import main
from qwenmtp.errors import NonFiniteLogits

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "PROMPTS", verify.PROMPTS[:1])
    monkeypatch.setattr(verify, "TOKENS", 10)
    monkeypatch.setattr(verify, "LAW_SEEDS", 80)


def judged(model: Model, name: str) -> verify.Check:
    """One check of the report."""
    return next(verify._judged(n, cases) for n, cases in verify._checks(model) if n == name)


def test_every_check_passes_on_the_demo(demo: Model) -> None:
    seen: list[verify.Check] = []
    report = verify.verify(demo, seen.append)
    assert report.passed, [c for c in report.checks if not c.passed]
    assert list(report.checks) == seen
    assert len(seen) == 17
    assert all(c.cases > 0 for c in seen)


def test_a_drafted_answer_that_differs_is_named(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = verify._answer

    def wrong(session: Any, ids: Any, *rest: Any, **options: Any) -> tuple[int, ...]:
        found = plain(session, ids, *rest, **options)
        drafted = session.depth == 2 and session.mode == "mtp"
        return (found[0] ^ 1, *found[1:]) if found and drafted else found

    monkeypatch.setattr(verify, "_answer", wrong)
    assert not judged(demo, "greedy drafting at depth 2 = greedy plain decoding").passed
    assert judged(demo, "greedy drafting at depth 1 = greedy plain decoding").passed


def test_a_law_that_always_takes_the_likelier_token_is_refused(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = verify._answer

    def greedy(session: Any, ids: Any, params: Any = verify.GREEDY, n: int = verify.TOKENS) -> tuple[int, ...]:
        return plain(session, ids, verify.GREEDY, n)

    monkeypatch.setattr(verify, "_answer", greedy)
    assert not judged(demo, "ar: sampled law = exact enumeration").passed


def test_an_answer_without_probability_is_refused() -> None:
    case = verify._chi_square({(1,): 0.5, (2,): 0.5}, Counter({(1,): 10, (3,): 1}))
    assert not case.ok
    assert "[3]" in case.text


def test_a_kept_state_that_differs_is_named(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_same_state", lambda *_: verify._Case(False, "trunk.0.gdn_ssm[5]: 1, 2"))
    check = judged(demo, "mtp: a warm turn = a cold one, ids and state")
    assert not check.passed
    assert check.detail == "trunk.0.gdn_ssm[5]: 1, 2"


FAILING = {
    "accept_every_draft": "mtp depth 3: sampled law = exact enumeration",
    "commit_one_row_more": "greedy drafting at depth 3 = greedy plain decoding",
    "final_history_row_missing": "mtp: a warm turn = a cold one, ids and state",
    "chunk_last_row_dropped": "mtp: prompts read in chunks of 1, 3, 16, 64, ids and state",
}


class FaultyCore:
    """The core with the drafting decoder of a test build."""

    def __init__(self, core: Any, fault: str):
        self._core, self._fault = core, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def Decoder(self, core: Any, state: Any, ids: list[int], options: dict[str, Any]) -> Any:
        if not options["speculate"]:
            return self._core.Decoder(core, state, ids, options)
        return testing.FaultyDecoder(core, state, ids, options, self._fault)


@pytest.mark.parametrize("fault", testing.FAULTS)
def test_a_fault_in_the_engine_fails_its_row(demo: Model, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(sessions, "_core", FaultyCore(sessions._core, fault))
    check = judged(demo, FAILING[fault])
    assert not check.passed
    assert check.detail


def test_a_restored_state_that_lost_a_token_fails_its_row(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[list[int]] = []
    plain = verify._answer

    def noted(session: Any, ids: Any, *rest: Any, **options: Any) -> tuple[int, ...]:
        saved.append([*ids, *plain(session, ids, *rest, **options)])
        return tuple(saved[-1][len(ids) :])

    def wrong(path: Path) -> Any:
        session = demo.session()
        plain(session, saved[-1][:-1], n=0)
        return session

    monkeypatch.setattr(verify, "_answer", noted)
    monkeypatch.setattr(demo, "restore", wrong)
    check = judged(demo, "mtp: a saved and restored state goes on as the unsaved one")
    assert not check.passed
    assert check.detail.startswith("ids[")


def test_an_error_of_the_engine_fails_the_check_it_happens_in(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = verify._answer

    def broken(session: Any, *rest: Any, **options: Any) -> tuple[int, ...]:
        if session.depth == 4:
            raise NonFiniteLogits("[decode] a NaN")
        return plain(session, *rest, **options)

    monkeypatch.setattr(verify, "_answer", broken)
    check = judged(demo, "greedy drafting at depth 4 = greedy plain decoding")
    assert not check.passed
    assert check.detail.startswith("non_finite_logits: ")


def test_the_command_exits_with_1_and_lists_every_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = verify.VerifyReport((verify.Check("a", True, 3), verify.Check("b", False, 2, "token 4")), 1.0)
    monkeypatch.setattr("qwenmtp.commands.verify", lambda model, show: report)
    assert main(["verify", "--model", str(DEMO), "--json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert out["passed"] is False
    assert out["checks"][1] == {"name": "b", "passed": False, "cases": 2, "detail": "token 4"}
