"""The upstream exits on the real caches with scripted logits: tokens, lengths, origin, and the teacher's state."""

from typing import Any

import _qwenmtp_testing as core
import pytest

from qwenmtp import _core

PROMPT, SUFFIX = [699, 579, 207, 12, 40], [681, 3]
# After n tokens the next one is 100 + n; the token of index i in the answer is then 100 + len(PROMPT) + i.
SCRIPT = [100 + n for n in range(64)]
FIRST = SCRIPT[len(PROMPT)]
WRONG = 7
GREEDY, SAMPLED = (0.0, 0.95, 20, 0.0, 0.0), (0.6, 0.95, 20, 0.0, 0.0)

# name: depth, sampler, lane, depth of the first round's wrong draft (0: none), limit, index of the stop token,
# expected length of the answer, expected origin
EXITS = {
    "first primary is a stop": (3, SAMPLED, "capture_commit", 0, 9, 0, 1, "primary"),
    "first primary reaches the limit": (3, SAMPLED, "capture_commit", 0, 1, None, 1, None),
    "fresh primary after a greedy rejection is a stop": (2, GREEDY, "capture_commit", 1, 9, 1, 2, "primary"),
    "fresh primary reaches the limit": (2, GREEDY, "capture_commit", 1, 2, None, 2, None),
    "last draft is a stop": (2, SAMPLED, "capture_commit", 0, 9, 2, 3, "accepted_draft"),
    "earlier draft is a stop": (3, SAMPLED, "capture_commit", 0, 9, 1, 2, "accepted_draft"),
    "earlier draft is a stop, re-forwarded": (3, SAMPLED, "reforward", 0, 9, 1, 2, "accepted_draft"),
    "bonus is a stop": (2, SAMPLED, "capture_commit", 0, 9, 3, 4, "bonus"),
    "bonus reaches the limit": (3, SAMPLED, "capture_commit", 0, 5, None, 5, None),
    "deferred correction is a stop": (2, SAMPLED, "capture_commit", 1, 9, 1, 2, "residual_correction"),
    "deferred correction reaches the limit": (3, SAMPLED, "capture_commit", 2, 3, None, 3, None),
    "sampled correction is a stop": (2, SAMPLED, "reforward", 1, 9, 1, 2, "residual_correction"),
    "sampled correction reaches the limit": (3, SAMPLED, "reforward", 2, 3, None, 3, None),
    "drafts fill the limit at depth 1": (1, SAMPLED, "capture_commit", 0, 2, None, 2, None),
    "drafts fill the limit at depth 3": (3, SAMPLED, "capture_commit", 0, 4, None, 4, None),
}


def run(model: Any, state: Any, prompt: list[int], drafts: list[int] = SCRIPT, **options: Any) -> Any:
    decoder = core.ScriptedModelDecoder(
        model, state, prompt, {"seed": 1, "context_copy": False, **options}, SCRIPT, drafts
    )
    while not decoder.done:
        decoder.step()
    assert decoder.finish() == ""
    return decoder


def check_state(model: Any, state: Any, ids: list[int]) -> None:
    state.check()
    assert (state.ids, state.history_len) == (ids, len(ids) - 1)
    teacher = _core.State(model, True)
    run(model, teacher, ids, target=GREEDY, max_tokens=0, prefill_chunk=1)
    assert state.first_difference(teacher) is None


@pytest.mark.parametrize("name", EXITS)
def test_exit_leaves_the_teachers_state_and_a_warm_turn_goes_on(demo: Any, name: str) -> None:
    depth, target, lane, wrong_at, limit, stop_at, length, origin = EXITS[name]
    drafts = list(SCRIPT)
    if wrong_at:
        drafts[len(PROMPT) + wrong_at] = WRONG
    state = _core.State(demo, True)
    decoder = run(
        demo,
        state,
        PROMPT,
        drafts,
        target=target,
        lane=lane,
        depth=depth,
        max_tokens=limit,
        stops=[] if stop_at is None else [FIRST + stop_at],
    )
    assert decoder.tokens == [FIRST + i for i in range(length)]
    assert decoder.finish_reason == ("length" if origin is None else "stop")
    assert origin is None or decoder.stop_origin == origin
    ids = PROMPT + decoder.tokens
    check_state(demo, state, ids)
    warm = run(demo, state, ids + SUFFIX, target=target, lane=lane, depth=depth, max_tokens=4)
    assert warm.statistics["cached_tokens"] == len(ids)
    check_state(demo, state, ids + SUFFIX + warm.tokens)
