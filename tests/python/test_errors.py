"""errors.py: stable codes, one class per remedy, nothing lost on the way from the core."""

import copy
import json
import pickle
import re
from pathlib import Path

import pytest

from qwenmtp import errors
from qwenmtp.errors import CODES, CheckpointError, QwenMtpError, class_of, from_code

# The contract of sessions.md 5.2 and api.md: a change of any cell is a change for every caller.
CONTRACT = {
    "invalid_request": ("InvalidRequest", False, 400),
    "context_length_exceeded": ("ContextLengthExceeded", False, 400),
    "session_busy": ("SessionBusy", True, 409),
    "insufficient_memory": ("InsufficientMemory", False, 507),
    "cancelled": ("Cancelled", True, 499),
    "deadline_exceeded": ("DeadlineExceeded", True, 504),
    "ple_read_error": ("PleReadError", True, 500),
    "non_finite_logits": ("NonFiniteLogits", False, 500),
    "device_error": ("DeviceError", False, 500),
    "final_commit_failed": ("FinalCommitFailed", False, None),
    "checkpoint_version": ("CheckpointError", False, None),
    "checkpoint_corrupt": ("CheckpointError", False, None),
    "checkpoint_foreign": ("CheckpointError", False, None),
    "checkpoint_incompatible": ("CheckpointError", False, None),
    "checkpoint_unsafe_path": ("CheckpointError", False, None),
    "checkpoint_unavailable": ("CheckpointError", True, None),
    "model_load_error": ("ModelFormatError", False, None),
    "io_error": ("IoError", False, None),
    "config_error": ("ConfigError", False, None),
    "version_mismatch": ("VersionMismatch", False, None),
    "internal_error": ("QwenMtpError", False, 500),
}


def test_codes_are_the_contract() -> None:
    assert set(CODES) == set(CONTRACT)
    assert list(errors.REMEDIES) == list(CODES)


@pytest.mark.parametrize("code", CONTRACT)
def test_from_code_builds_the_class_of_the_code(code: str) -> None:
    name, retryable, hint = CONTRACT[code]
    error = from_code(code, "[room.function] 1, expected 2", {"found": 1})
    assert type(error) is class_of(code) is getattr(errors, name)
    assert (error.code, error.retryable, error.http_hint) == (code, retryable, hint)
    assert (str(error), error.details) == ("[room.function] 1, expected 2", {"found": 1})


def test_every_code_that_the_core_throws_has_a_row() -> None:
    core = Path(__file__).resolve().parents[2] / "csrc"
    classes = dict(
        re.findall(r'struct (\w+) : Error \{[^}]*?Error\("([a-z_]+)"', (core / "base" / "error.h").read_text())
    )
    sources = "".join(path.read_text() for path in core.rglob("*.cpp"))
    thrown = {code for name, code in classes.items() if re.search(rf"\b{name}\(", sources)}
    assert len(thrown) >= 4
    assert thrown <= set(CODES)


def test_a_code_without_a_row_keeps_its_message_and_code() -> None:
    error = from_code("brand_new", "what happened", {"n": 1})
    assert (error.code, str(error)) == ("internal_error", "what happened")
    assert error.details == {"n": 1, "unknown_code": "brand_new"}


@pytest.mark.parametrize("outcome", errors.CHECKPOINT_CODES)
def test_checkpoint_outcome_decides_the_code(outcome: str) -> None:
    error = CheckpointError("x", outcome)
    assert error.outcome == outcome
    assert error.code == errors.CHECKPOINT_CODES[outcome]
    assert error.retryable == CODES[error.code].retryable


@pytest.mark.parametrize("code", [c for c in CONTRACT if c.startswith("checkpoint_")])
def test_checkpoint_code_gives_back_its_outcome(code: str) -> None:
    error = from_code(code, "x")
    assert isinstance(error, CheckpointError)
    assert errors.CHECKPOINT_CODES[error.outcome] == code


def test_an_instance_may_know_better_than_its_code() -> None:
    assert errors.InsufficientMemory("x", retryable=True).retryable
    assert not errors.SessionBusy("x", retryable=False).retryable
    assert not CheckpointError("x", "busy", retryable=False).retryable


def test_json_holds_every_field() -> None:
    error = errors.SessionBusy("busy", details={"session": "a"})
    assert json.loads(json.dumps(error.to_json())) == {
        "code": "session_busy",
        "message": "busy",
        "retryable": True,
        "http_hint": 409,
        "details": {"session": "a"},
    }


@pytest.mark.parametrize(
    "error", [CheckpointError("m", "busy", retryable=False), errors.Cancelled("m", details={"origin": "user"})]
)
def test_errors_cross_process_boundaries_whole(error: QwenMtpError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert other.to_json() == error.to_json()
        assert vars(other) == vars(error)


def test_details_are_a_copy() -> None:
    facts = {"n": 1}
    error = errors.InvalidRequest("x", details=facts)
    facts["n"] = 2
    assert error.details == {"n": 1}
