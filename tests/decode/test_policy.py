"""The automatic depth: what it promises, chooses and learns. Speed only; the law is tested in test_law.py."""

from typing import Any

import _qwenmtp_testing as core
import pytest


def taught(ceiling: int, rounds: int, *, accepted: int, draft: float, row: float, base: float) -> Any:
    """A policy after rounds that accept at most `accepted` drafts; a verify costs base + row a row, a draft `draft`."""
    policy = core.DepthPolicy(ceiling, True)
    for _ in range(rounds):
        depth = policy.next()
        hits = min(depth, accepted)
        policy.record(depth, min(depth, hits + 1), hits, depth * draft, base + row * (1 + depth))
    return policy


def choices(policy: Any, rounds: int, *, accepted: int, draft: float, row: float, base: float) -> list[int]:
    out = []
    for _ in range(rounds):
        out.append(policy.next())
        hits = min(out[-1], accepted)
        policy.record(out[-1], min(out[-1], hits + 1), hits, out[-1] * draft, base + row * (1 + out[-1]))
    return out


def test_a_static_depth_never_moves() -> None:
    policy = core.DepthPolicy(3, False)
    for _ in range(100):
        assert policy.next() == 3
        policy.record(3, 1, 0, 9.0, 1.0)


@pytest.mark.parametrize(
    ("accepted", "costs", "depth"),
    [
        (0, {"draft": 0.3, "row": 0.2, "base": 1.0}, 0),  # no draft is ever right
        (9, {"draft": 0.01, "row": 0.01, "base": 1.0}, 5),  # every draft is right and nearly free
        (9, {"draft": 2.0, "row": 0.1, "base": 1.0}, 0),  # right, but dearer than a forward
        (1, {"draft": 0.1, "row": 0.1, "base": 1.0}, 1),  # the second draft is always wrong
    ],
)
def test_it_settles_on_the_depth_that_pays(accepted: int, costs: dict[str, float], depth: int) -> None:
    policy = taught(5, 200, accepted=accepted, **costs)
    tail = choices(policy, 64, accepted=accepted, **costs)
    assert sorted(tail)[len(tail) // 2] == depth
    assert max(tail) <= 5
    assert min(tail) >= 0


def test_it_probes_a_deeper_round_now_and_then() -> None:
    costs = {"draft": 0.3, "row": 0.2, "base": 1.0}
    tail = choices(taught(4, 200, accepted=0, **costs), 64, accepted=0, **costs)
    assert tail.count(1) == 2
    assert set(tail) == {0, 1}


def test_equal_histories_choose_alike() -> None:
    costs = {"draft": 0.2, "row": 0.1, "base": 1.0}
    a, b = (taught(5, 77, accepted=2, **costs) for _ in range(2))
    assert a.next() == b.next()
    assert [a.expected_tokens(d) for d in range(6)] == [b.expected_tokens(d) for d in range(6)]


def test_expected_tokens_are_one_and_the_products_of_acceptance() -> None:
    policy = core.DepthPolicy(5, True)
    for depth in range(6):
        assert policy.expected_tokens(depth) == pytest.approx(sum(0.7**d for d in range(depth + 1)))
    policy.record(2, 2, 1, 0.1, 1.0)
    first, second = 0.7 + 0.3 / 3, 0.7 - 0.7 / 3  # the prior counts for two
    assert policy.expected_tokens(2) == pytest.approx(1 + first + first * second)


def test_it_begins_with_one_draft_and_learns_in_a_few_rounds() -> None:
    costs = {"draft": 0.3, "row": 0.2, "base": 1.0}
    policy = taught(5, 0, accepted=0, **costs)
    assert choices(policy, 6, accepted=0, **costs)[0] == 1
    assert choices(policy, 20, accepted=0, **costs) == [0] * 20
