"""Windows and commits: a kept row's state and logits are those of a run that never saw the others, bit for bit."""

from typing import Any

import _qwenmtp_testing as testing
import numpy as np
import pytest

from .conftest import GOLDEN, load

CHECKPOINTS = ("small", "speed", "wide")
IDS = [int(i) for i in np.random.default_rng(5).integers(0, 64, 64)]


@pytest.fixture(
    scope="module",
    params=[(c, f) for c in CHECKPOINTS for f in (True, False)],
    ids=lambda p: f"{p[0]}-{'f32' if p[1] else 'bf16'}",
)
def model(request: pytest.FixtureRequest) -> Any:
    return load(GOLDEN / request.param[0], request.param[1])


def one_by_one(model: Any, ids: list[int], prefix: int) -> tuple[Any, np.ndarray]:
    sequence = testing.Sequence(model)
    sequence.forward(ids[:prefix])
    rows = [sequence.forward([i])["logits"] for i in ids[prefix:]]
    return sequence, np.concatenate(rows)


def assert_same_state(a: Any, b: Any) -> None:
    left, right = a.state(), b.state()
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


@pytest.mark.parametrize(("window", "keep"), [(8, k) for k in range(1, 9)] + [(25, k) for k in (1, 7, 12, 24, 25)])
def test_commit_equals_decoding_only_the_kept_rows(model: Any, window: int, keep: int) -> None:
    prefix = 30
    want, want_logits = one_by_one(model, IDS[: prefix + keep], prefix)
    got = testing.Sequence(model)
    got.forward(IDS[:prefix])
    logits = got.forward(IDS[prefix : prefix + window], window=True)["logits"]
    got.commit(keep)
    np.testing.assert_array_equal(logits[:keep], want_logits)
    assert got.len == prefix + keep
    assert_same_state(got, want)
    again, expected = got.forward(IDS[5:9])["logits"], want.forward(IDS[5:9])["logits"]
    np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("chunk", [1, 3, 7, 20])
def test_prefill_in_chunks_of_any_length_is_the_same_run(model: Any, chunk: int) -> None:
    whole, parts = testing.Sequence(model), testing.Sequence(model)
    logits = whole.forward(IDS[:41])["logits"]
    rows = [parts.forward(IDS[:41][i : i + chunk])["logits"] for i in range(0, 41, chunk)]
    np.testing.assert_array_equal(np.concatenate(rows), logits)
    assert_same_state(parts, whole)


def test_head_appends_without_drafting_leave_the_same_history(model: Any) -> None:
    sequence = testing.Sequence(model)
    hidden = sequence.forward(IDS[:20])["hyper"]
    drafted, appended = testing.Sequence(model), testing.Sequence(model)
    drafted.draft(hidden[:-1], IDS[1:20])
    appended.draft(hidden[:-1], IDS[1:20], append_only=True)
    for name, value in drafted.history().items():
        np.testing.assert_array_equal(value, appended.history()[name], err_msg=name)


def test_truncated_history_continues_as_if_never_longer(model: Any) -> None:
    hidden = testing.Sequence(model).forward(IDS[:24])["hyper"]
    short, long = testing.Sequence(model), testing.Sequence(model)
    short.draft(hidden[:10], IDS[1:11])
    long.draft(hidden[:17], IDS[1:18])
    long.truncate_history(10)
    a, b = short.draft(hidden[10:14], IDS[11:15]), long.draft(hidden[10:14], IDS[11:15])
    np.testing.assert_array_equal(a["logits"], b["logits"])
    for name, value in short.history().items():
        np.testing.assert_array_equal(value, long.history()[name], err_msg=name)
