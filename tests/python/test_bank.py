"""The bank over made-up states: who finds what, what may not go, what goes first."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from qwenmtp import CheckpointError
from qwenmtp.bank import BankLimits, Entry, SessionBank
from qwenmtp.identity import SessionIdentity
from qwenmtp.reuse import ReusePolicy, as_ids

IDENTITY = SessionIdentity(
    model="m", mtp_head="h", tokenizer="t", compute_dtype="float32", kv_dtype="float32", mode="mtp", depth=3
)
POLICY = ReusePolicy()


class State:
    """10 bytes a token and 100 a boundary."""

    history_len = 0

    def __init__(self, ids: Sequence[int], boundaries: Sequence[int] = ()):
        self.ids, self.boundaries = list(ids), list(boundaries)

    @property
    def n_bytes(self) -> int:
        return 10 * len(self.ids) + 100 * len(self.boundaries)

    def keep_boundaries(self, lengths: Sequence[int]) -> None:
        self.boundaries = [b for b in self.boundaries if b in lengths]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def bank(**limits: Any) -> SessionBank:
    defaults: dict[str, Any] = {"max_bytes": 10**6, "max_entries": 99, "per_session_bytes": 10**6, "pin_s": 0.0}
    return SessionBank("m", BankLimits(**(defaults | {"idle_ttl_s": 0.0} | limits)), Clock())


def put(b: SessionBank, session: object, ids: Sequence[int], boundaries: Sequence[int] = (), **options: Any) -> Entry:
    options = {"shared": True, "finish": "stop"} | options
    entry = b.put(State(ids, boundaries), IDENTITY, session, **options)
    assert entry is not None
    return entry


def found(b: SessionBank, session: object, ids: Sequence[int], identity: SessionIdentity = IDENTITY) -> Any:
    hit = b.find(as_ids(ids), identity.digest(), session, POLICY)
    if hit is None:
        return None
    b.release(hit.entry)
    return (hit.entry.session, *hit.point)


def left(b: SessionBank) -> list[tuple[object, int]]:
    return [(e.session, len(e.ids)) for e in b.entries()]


def reasons(b: SessionBank) -> list[str]:
    return [e.reason for e in b.evictions]


def test_the_longest_restorable_prefix_wins_and_the_own_entry_a_tie() -> None:
    b = bank()
    put(b, "a", range(8), [3, 6])
    put(b, "b", range(5))
    put(b, "c", range(5))
    assert found(b, "x", range(9)) == ("a", 8, "exact")
    assert found(b, "x", [*range(7), 99]) == ("a", 6, "boundary")
    assert found(b, "b", [*range(5), 99]) == ("b", 5, "exact")
    assert found(b, "c", [*range(5), 99]) == ("c", 5, "exact")
    assert found(b, "x", [*range(4), 99]) == ("a", 3, "boundary")
    assert found(b, "x", [0, 99]) is None
    put(b, "d", range(6))
    assert found(b, "a", [*range(6), 99]) == ("d", 6, "exact")  # no rewinding before the own


def test_a_state_that_cannot_answer_serves_longer_prompts_only() -> None:
    b = bank()
    put(b, "a", range(6), finish=None)
    assert found(b, "a", range(6)) is None
    assert found(b, "a", range(7)) == ("a", 6, "exact")


@pytest.mark.parametrize("field", ["mode", "depth", "cache_scope", "compute_dtype", "history_policy"])
def test_identities_never_meet(field: str) -> None:
    b = bank()
    put(b, "a", range(6))
    other = replace(IDENTITY, **{field: "other"})
    assert found(b, "a", range(7), other) is None
    assert found(b, "a", range(7)) == ("a", 6, "exact")


def test_the_state_of_another_model_is_refused() -> None:
    b = bank()
    with pytest.raises(CheckpointError) as caught:
        b.put(State(range(3)), replace(IDENTITY, model="other"), "a")
    assert (caught.value.outcome, caught.value.details) == ("incompatible", {"reason": "identity"})
    assert left(b) == []


def test_a_private_entry_serves_its_session_alone() -> None:
    b = bank()
    put(b, "a", range(6), shared=False)
    assert found(b, "b", range(7)) is None
    assert found(b, "a", range(7)) == ("a", 6, "exact")
    b.forget("a")
    assert left(b) == []


def test_the_entry_of_a_session_that_went_goes_once_nobody_holds_it() -> None:
    b = bank()
    with b.held(put(b, "a", range(6))):
        b.forget("a")
        assert left(b) == [("a", 6)]
    assert left(b) == []
    assert reasons(b) == ["session_gone"]


def test_a_leased_entry_is_nobodys_and_stays() -> None:
    b = bank(max_entries=1)
    entry = put(b, "a", range(6))
    hit = b.find(as_ids(range(7)), IDENTITY.digest(), "a", POLICY)
    assert hit is not None
    assert b.lease(entry)
    assert not b.lease(entry)
    assert found(b, "b", range(7)) is None
    put(b, "b", [9, 9])
    assert left(b) == [("a", 6), ("b", 2)]
    with b.held(entry) as state:
        assert state is None
    b.release(entry)
    assert found(b, "b", range(7)) == ("a", 6, "exact")
    put(b, "c", [8, 8])
    assert left(b) == [("c", 2)]
    assert entry.state is None


def test_an_entry_that_is_copied_is_neither_leased_nor_evicted() -> None:
    b = bank(max_entries=1)
    entry = put(b, "a", range(6))
    b.find(as_ids(range(7)), IDENTITY.digest(), "b", POLICY)
    b.find(as_ids(range(7)), IDENTITY.digest(), "a", POLICY)
    assert not b.lease(entry)
    put(b, "c", [8, 8])
    assert entry.state is not None
    b.release(entry)
    assert b.lease(entry)


def test_a_longer_entry_supersedes_the_prefixes_it_can_serve() -> None:
    b = bank(per_session_entries=0)
    put(b, "a", range(600), [512])
    put(b, "a", range(900), [832])
    assert left(b) == [("a", 600), ("a", 900)]  # no boundary at 600 or 599
    put(b, "b", range(599))
    put(b, "a", range(950), [599, 900])
    assert left(b) == [("b", 599), ("a", 950)]
    assert reasons(b) == ["superseded", "superseded"]
    put(b, "a", range(950), [899])
    assert left(b) == [("b", 599), ("a", 950)]


def test_a_session_keeps_its_newest_three_and_others_theirs() -> None:
    b = bank(per_session_entries=3)
    put(b, "b", [0, 0])
    for first in range(5):
        put(b, "a", [first, 1])
    assert [int(e.ids[0]) for e in b.entries()] == [0, 2, 3, 4]
    assert reasons(b) == ["session_entries"] * 2


def test_the_least_recently_used_goes_first_then_the_largest() -> None:
    b = bank(max_entries=3)
    for name, n in (("a", 2), ("b", 3), ("c", 4)):
        put(b, name, [ord(name)] * n)
    found(b, "x", [97, 97, 97])
    put(b, "d", [1])
    assert [s for s, _ in left(b)] == ["a", "c", "d"]
    for e in b.entries():
        e.accessed = 1.0
    put(b, "e", [2])
    assert [s for s, _ in left(b)] == ["a", "d", "e"]


def test_bytes_are_those_held_and_the_new_entry_stays() -> None:
    b = bank(max_bytes=100)
    put(b, "a", [1] * 4)
    put(b, "b", [2] * 4)
    put(b, "c", [3] * 9)
    assert left(b) == [("c", 9)]
    assert b.n_bytes == 90
    assert [(e.reason, e.session, e.n_tokens, e.n_bytes) for e in b.evictions] == [
        ("bytes", "a", 4, 40),
        ("bytes", "b", 4, 40),
    ]


def test_a_session_over_its_own_budget_evicts_its_own() -> None:
    b = bank(per_session_bytes=100)
    put(b, "b", [2] * 9)
    put(b, "a", [1] * 6)
    put(b, "a", [3] * 6)
    assert left(b) == [("b", 9), ("a", 6)]
    assert reasons(b) == ["session_bytes"]


def test_boundaries_are_shed_oldest_first_before_an_entry_is_refused() -> None:
    b = bank(per_session_bytes=270)
    entry = put(b, "a", range(7), [1, 2, 3, 4])
    assert entry.boundaries == [3, 4]
    assert entry.n_bytes == 270
    assert b.put(State(range(28), [5]), IDENTITY, "b") is None
    assert left(b) == [("a", 7)]
    assert reasons(b) == ["oversized"]


@pytest.mark.parametrize(("pin_s", "goes"), [(50.0, "b"), (0.0, "a")])
def test_all_entries_of_an_active_session_go_last(pin_s: float, goes: str) -> None:
    b = bank(max_entries=3, pin_s=pin_s)
    put(b, "a", [1]).accessed = -200.0
    put(b, "b", [2]).accessed = -100.0
    put(b, "a", [3])
    put(b, "c", [4])
    assert b.evictions[0].session == goes


def test_when_all_are_pinned_the_least_recently_used_goes() -> None:
    b = bank(max_entries=2, pin_s=50.0)
    for first, name in enumerate("abc"):
        put(b, name, [first])
    assert [s for s, _ in left(b)] == ["b", "c"]


def test_storing_a_prefix_does_not_evict_what_extends_it() -> None:
    b = bank(max_entries=2)
    put(b, "a", range(9))
    put(b, "b", [5, 5])
    put(b, "c", range(4))
    assert [s for s, _ in left(b)] == ["a", "c"]


def test_idle_entries_go() -> None:
    b = bank(idle_ttl_s=20.0)
    put(b, "a", [1])
    put(b, "b", [2])
    for _ in range(12):
        found(b, "b", [2, 3])
    assert [s for s, _ in left(b)] == ["b"]
    assert reasons(b) == ["idle"]


def test_clear_drops_what_is_held_too() -> None:
    b = bank()
    entry = put(b, "a", range(3))
    b.find(as_ids(range(4)), IDENTITY.digest(), "a", POLICY)
    b.clear()
    assert len(b) == 0
    assert entry.state is None
