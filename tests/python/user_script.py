"""What a user might write, every public name of qwenmtp used as documented; type checkers and a test run it."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import assert_type

from qwenmtp import (
    BenchResult,
    Cancelled,
    CheckpointError,
    CheckpointStore,
    ConfigError,
    ContextLengthExceeded,
    DeadlineExceeded,
    DeviceError,
    FinalCommitFailed,
    InsufficientMemory,
    InvalidRequest,
    IoError,
    MemoryPlan,
    Model,
    ModelFormatError,
    NonFiniteLogits,
    PleReadError,
    QwenMtpError,
    Round,
    SamplingParams,
    Session,
    SessionBank,
    SessionBusy,
    Settings,
    Turn,
    VerifyReport,
    VersionMismatch,
    __version__,
    load,
)

RETRY = (SessionBusy, Cancelled, DeadlineExceeded, PleReadError)
GIVE_UP = (ConfigError, ModelFormatError, VersionMismatch, DeviceError, NonFiniteLogits, IoError)


def advice(error: QwenMtpError) -> str:
    """What to do about an error."""
    assert_type(error.code, str)
    assert_type(error.retryable, bool)
    assert_type(error.http_hint, int | None)
    if isinstance(error, CheckpointError):
        return f"start cold: {error.outcome}"
    if isinstance(error, (InvalidRequest, ContextLengthExceeded)):
        return f"change {error.details.get('field', 'the request')}"
    if isinstance(error, InsufficientMemory):
        return "a shorter context"
    if isinstance(error, FinalCommitFailed):
        return "keep the text, ask again"
    if isinstance(error, RETRY):
        return "again"
    return "give up" if isinstance(error, GIVE_UP) else json.dumps(error.to_json())


def answer(session: Session, prompt: str | list[int], params: SamplingParams) -> Turn:
    """One whole answer."""
    for r in session.generate(prompt, params, max_tokens=4, stop=["\n\n\n"]):
        assert_type(r, Round)
        assert_type(r.text, str)
        print(r.text, end="")
    turn = session.last_turn
    assert turn is not None
    return turn


def fits(plan: MemoryPlan) -> bool:
    """Whether a session of this plan may be opened."""
    assert_type(plan.total, int)
    return plan.fits


def describe(model: Model) -> None:
    """Prints what the model is and holds."""
    bank: SessionBank = model.bank
    store: CheckpointStore | None = model.store
    print(model.config, model.settings.prefill.chunk, bank, store)


def passed(report: VerifyReport) -> bool:
    """Whether this machine keeps the promises."""
    return report.passed


def record(results: list[BenchResult]) -> str:
    """Results of a benchmark as one JSON line each."""
    return "\n".join(json.dumps(r.to_json()) for r in results)


def main(path: str) -> int:
    settings = Settings.from_env(dtype="float32")
    try:
        with load(path, settings) as model:
            assert_type(model, Model)
            describe(model)
            if not fits(model.plan(context=1024)):
                return 1
            with model.session(mode="mtp", depth=3) as session:
                turn = answer(session, "def main(argv):", SamplingParams(temperature=0.6, seed=7))
                print(turn.finish, turn.usage["completion"], session.state()["tokens"])
                branch = session.fork()
                answer(branch, [*session.ids, *turn.ids[:1]], SamplingParams(temperature=0.0))
                with tempfile.TemporaryDirectory() as folder:
                    session.save(Path(folder) / "chat.qwmtkv")
                    assert_type(model.restore(Path(folder) / "chat.qwmtkv"), Session)
    except QwenMtpError as error:
        print(__version__, advice(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
