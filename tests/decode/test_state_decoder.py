"""The decoder on the real model: every ending equals teacher forcing, byte for byte, and so does the turn after it."""

from itertools import product
from typing import Any

import _qwenmtp_testing as core
import pytest

from qwenmtp import _core
from qwenmtp.errors import InvalidRequest, QwenMtpError

# "def main(argv):" and a newline for the demo tokenizer; ids alone, so that no tokenizer is needed.
PROMPT = [699, 579, 207, 12, 40]
SUFFIX = [681, 3]
GREEDY, SAMPLED = (0.0, 0.95, 20, 0.0, 0.0), (0.6, 0.95, 20, 0.0, 0.0)
TARGETS = {0.0: GREEDY, 0.6: SAMPLED}


def run(model: Any, state: Any, prompt: list[int], cls: Any = _core.Decoder, **options: Any) -> Any:
    extra = options.pop("extra", ())
    decoder = cls(model, state, prompt, {"seed": 3, "context_copy": False, **options}, *extra)
    while not decoder.done:
        decoder.step()
    assert decoder.finish() == ""
    return decoder


def teacher(model: Any, ids: list[int], *, speculate: bool = True) -> Any:
    """The state after forwarding the ids one by one."""
    state = _core.State(model, speculate)
    run(model, state, ids, target=GREEDY, max_tokens=0, prefill_chunk=1, speculate=speculate)
    return state


def check_ending(model: Any, state: Any, ids: list[int]) -> None:
    state.check()
    assert state.ids == ids
    assert state.history_len == len(ids) - 1
    assert state.first_difference(teacher(model, ids)) is None


@pytest.mark.parametrize(("depth", "temperature", "limit"), list(product((1, 2, 3), (0.0, 0.6), (1, 2, 5, 9))))
def test_endings_and_the_warm_turn_after_them(demo: Any, depth: int, temperature: float, limit: int) -> None:
    state = _core.State(demo, True)
    first = run(demo, state, PROMPT, target=TARGETS[temperature], depth=depth, max_tokens=limit)
    assert len(first.tokens) == limit
    ids = PROMPT + first.tokens
    check_ending(demo, state, ids)
    warm = run(demo, state, ids + SUFFIX, target=TARGETS[temperature], depth=depth, max_tokens=4)
    assert warm.statistics["cached_tokens"] == len(ids)
    check_ending(demo, state, ids + SUFFIX + warm.tokens)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("limit", [3, 48])
def test_an_ending_of_the_automatic_depth(demo: Any, temperature: float, limit: int) -> None:
    state = _core.State(demo, True)
    decoder = run(demo, state, PROMPT, target=TARGETS[temperature], depth=5, auto_depth=True, max_tokens=limit)
    check_ending(demo, state, PROMPT + decoder.tokens)


@pytest.mark.parametrize(("depth", "temperature"), list(product((1, 2, 3), (0.0, 0.6))))
def test_a_first_primary_that_is_a_stop(demo: Any, depth: int, temperature: float) -> None:
    options = {"target": TARGETS[temperature], "depth": depth}
    primary = run(demo, _core.State(demo, True), PROMPT, max_tokens=1, **options).tokens[0]
    state = _core.State(demo, True)
    decoder = run(demo, state, PROMPT, max_tokens=9, stops=[primary], **options)
    assert (decoder.tokens, decoder.finish_reason, decoder.stop_origin) == ([primary], "stop", "primary")
    check_ending(demo, state, [*PROMPT, primary])


def test_greedy_speculation_emits_the_autoregressive_ids(demo: Any) -> None:
    plain = _core.State(demo, False)
    want = run(demo, plain, PROMPT, target=GREEDY, max_tokens=24, speculate=False).tokens
    assert plain.first_difference(teacher(demo, PROMPT + want, speculate=False)) is None
    for depth in range(1, 6):
        for extra in ({}, {"lane": "reforward"}, {"auto_depth": True}):
            got = run(demo, _core.State(demo, True), PROMPT, target=GREEDY, max_tokens=24, depth=depth, **extra)
            assert got.tokens == want


@pytest.mark.parametrize("lane", ["capture_commit", "reforward"])
def test_a_copied_block_leaves_the_teachers_state(demo: Any, lane: str) -> None:
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 5, 6, 7, 8, 9, 10]
    state = _core.State(demo, True)
    decoder = run(demo, state, prompt, target=SAMPLED, max_tokens=12, context_copy=True, lane=lane)
    assert decoder.statistics["context_copy_probes"] > 0
    assert state.ids == prompt + decoder.tokens
    if lane == "capture_commit":
        check_ending(demo, state, prompt + decoder.tokens)
    else:  # the block was accepted in part, which costs this lane a history row: the history starts anew
        assert decoder.statistics["context_copy_disabled_reason"]
        assert state.history_len == 0
        state.check()


def test_a_cancelled_turn_leaves_the_state_and_retries_alike(demo: Any) -> None:
    state = _core.State(demo, True)
    ids = PROMPT + run(demo, state, PROMPT, target=SAMPLED, max_tokens=4).tokens
    before = state.fork()
    want = None
    for pulled in (0, 1, 3, 99):
        decoder = _core.Decoder(demo, state, ids + SUFFIX, {"target": SAMPLED, "seed": 8, "max_tokens": 8})
        for _ in range(pulled):
            decoder.advance()
        if not decoder.done:
            decoder.cancel()
            decoder.advance()
            assert decoder.finish_reason == "cancelled"
        else:
            want = decoder.tokens
            decoder.abandon()
        assert state.first_difference(before) is None
        assert state.ids == ids
    assert run(demo, state, ids + SUFFIX, target=SAMPLED, seed=8, max_tokens=8).tokens == want


def test_a_prefix_cut_anywhere_is_no_prefix(demo: Any) -> None:
    state = _core.State(demo, True)
    run(demo, state, PROMPT, target=GREEDY, max_tokens=1)
    with pytest.raises(InvalidRequest, match="prefix of 6"):
        _core.Decoder(demo, state, PROMPT, {"target": GREEDY, "max_tokens": 1})


@pytest.mark.parametrize("fault", core.FAULTS)
def test_every_fault_of_the_test_build_is_visible(demo: Any, fault: str) -> None:
    # One token: the ending that commits a pending token, and its history row.
    options = {"target": SAMPLED, "max_tokens": 1 if fault == "final_history_row_missing" else 9, "depth": 3}
    sound = run(demo, _core.State(demo, True), PROMPT, **options).tokens
    state = _core.State(demo, True)
    try:
        tokens = run(demo, state, PROMPT, core.FaultyDecoder, extra=(fault,), **options).tokens
        same = tokens == sound and state.first_difference(teacher(demo, PROMPT + tokens)) is None
    except QwenMtpError:
        same = False
    assert not same


def test_a_broken_state_is_not_committed(demo: Any) -> None:
    with pytest.raises(QwenMtpError, match=r"\[state.check\] history of 0 \+ 4 rows, expected 5"):
        run(
            demo,
            _core.State(demo, True),
            PROMPT,
            core.FaultyDecoder,
            extra=("final_history_row_missing",),
            target=SAMPLED,
            max_tokens=1,
        )
