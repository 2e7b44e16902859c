"""Many timelines in memory: finds a prefix, keeps budgets, evicts. Knows lengths and bytes of states, no tensor."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from qwenmtp.errors import CheckpointError
from qwenmtp.identity import SessionIdentity
from qwenmtp.reuse import Ids, RestorePoint, ReusePolicy, as_ids, common_prefix

GIB = 1 << 30


class State(Protocol):
    """What the bank asks of a state."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def boundaries(self) -> list[int]: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def history_len(self) -> int: ...
    def keep_boundaries(self, lengths: Sequence[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class BankLimits:
    """Bounds of a bank, in bytes that entries hold.

    Attributes:
        max_bytes: All entries.
        max_entries: All entries.
        per_session_bytes: Entries of one session; more sheds boundaries, oldest first, and then refuses.
        per_session_entries: Newest entries kept of one named session; 0 is no limit.
        idle_ttl_s: An entry untouched for so long goes; 0 is never.
        pin_s: The entries of a session touched within this time go last; 0 is off.
    """

    max_bytes: int = 24 * GIB
    max_entries: int = 24
    per_session_bytes: int = 8 * GIB
    per_session_entries: int = 3
    idle_ttl_s: float = 3600.0
    pin_s: float = 600.0


@dataclass(eq=False, slots=True)
class Entry:
    """One stored timeline.

    Attributes:
        state: None once it was evicted.
        ids: Its tokens.
        identity: Digest that a lookup must name.
        session: Whose it is.
        shared: Whether other sessions may take a copy.
        finish: How its last answer ended, `stop` or `length`; None where it cannot answer without a forward.
        source: Where its state came from, `live` or `store`.
        users: Lookups and requests that hold it now; it stays until they are done.
    """

    state: State | None
    ids: Ids
    identity: bytes
    session: object
    shared: bool
    finish: str | None
    source: str = "live"
    boundaries: list[int] = field(default_factory=list)
    n_bytes: int = 0
    created: float = 0.0
    accessed: float = 0.0
    users: int = 0
    leased: bool = False

    def measure(self) -> None:
        """Takes ids, boundaries and bytes from the state."""
        assert self.state is not None
        self.ids, self.boundaries = as_ids(self.state.ids), self.state.boundaries
        self.n_bytes = self.state.n_bytes


class Found(NamedTuple):
    """An entry that serves a prompt, and where."""

    entry: Entry
    point: RestorePoint


@dataclass(frozen=True, slots=True)
class Eviction:
    """Why an entry went."""

    reason: str
    session: object
    n_tokens: int
    n_bytes: int
    age_s: float


class SessionBank:
    """The resident states of one model. Methods may be called from any thread.

    A request leases its session's entry and moves the state on in place; nobody else sees a leased entry, and neither
    it nor one that is being copied can be evicted. The victim is the entry used least recently, then the largest, then
    the oldest; pinned entries, and those that extend the entry being stored, go last.

    Args:
        model: `SessionIdentity.model` of every entry.
        limits: Bounds.
        clock: Seconds.
    """

    def __init__(self, model: str, limits: BankLimits | None = None, clock: Callable[[], float] = time.monotonic):
        self.limits = limits or BankLimits()
        self.evictions: deque[Eviction] = deque(maxlen=256)
        self._model, self._clock = model, clock
        self._entries: list[Entry] = []
        self._gone: deque[object] = deque()  # sessions that nobody can ask for any more
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.entries())

    def entries(self) -> list[Entry]:
        """All of them, in the order they were stored."""
        with self._lock:
            self._purge()
            return list(self._entries)

    @property
    def n_bytes(self) -> int:
        """Bytes that all entries hold."""
        return sum(e.n_bytes for e in self.entries())

    def put(
        self,
        state: State,
        identity: SessionIdentity,
        session: object,
        *,
        shared: bool = False,
        finish: str | None = None,
        source: str = "live",
    ) -> Entry | None:
        """Stores a state; it is the bank's from now on.

        Args:
            state: With ids; nobody else may change it.
            identity: Of the session.
            session: Whose it is.
            shared: Whether other sessions of the identity may copy it.
            finish: As `Entry.finish`.
            source: As `Entry.source`.

        Returns:
            The entry, or None when it is too large for one session even without boundaries.

        Raises:
            CheckpointError: `incompatible`: the state is another model's.
        """
        if identity.model != self._model:
            raise CheckpointError(
                "[bank.put] the state of another model", "incompatible", details={"reason": "identity"}
            )
        now = self._clock()
        entry = Entry(state, as_ids(()), identity.digest(), session, shared, finish, source, created=now, accessed=now)
        with self._lock:
            self._purge()
            self._entries.append(entry)
            return entry if self.settle(entry) else None

    def settle(self, entry: Entry) -> bool:
        """Counts a new or longer entry, then makes room. False when the entry itself had to go."""
        with self._lock:
            entry.measure()
            entry.accessed = self._clock()
            if not self._fit(entry):
                self._evict(entry, "oversized")
                return False
            for other in self._free(lambda e: _supersedes(entry, e)):
                self._evict(other, "superseded")
            self._retire(entry)
            return True

    def find(
        self, prompt: Ids, identity: bytes, session: object, policy: ReusePolicy, *, shared: bool = True
    ) -> Found | None:
        """The entry that saves a prompt the most tokens: the session's own or, if asked for, a shared one. It is held
        until `release`."""
        with self._lock:
            self._purge()
            best: Found | None = None
            for entry in self._entries:
                if (
                    entry.leased
                    or entry.identity != identity
                    or not (entry.session == session or (shared and entry.shared))
                ):
                    continue
                point = policy.restore_point(
                    common_prefix(entry.ids, prompt),
                    len(entry.ids),
                    entry.boundaries,
                    len(prompt),
                    has_logits=entry.finish is not None,
                )
                if point is not None and (best is None or _rank(point, entry, session) > _rank(*best[::-1], session)):
                    best = Found(entry, point)
            if best is not None:
                best.entry.users += 1
                best.entry.accessed = self._clock()
            return best

    def lease(self, entry: Entry) -> bool:
        """Takes a held entry out of everyone's sight, so that its state may change; False while others hold it too."""
        with self._lock:
            if entry.users != 1 or entry.leased:
                return False
            entry.leased = True
            return True

    def release(self, entry: Entry) -> None:
        """Ends a hold or a lease."""
        with self._lock:
            entry.users -= 1
            entry.leased = False

    @contextmanager
    def held(self, entry: Entry) -> Iterator[State | None]:
        """The entry's state, safe from eviction for the block; None if it was evicted, or is leased."""
        with self._lock:
            state = None if entry.leased else entry.state
            entry.users += state is not None
        try:
            yield state
        finally:
            if state is not None:
                self.release(entry)

    def forget(self, session: object) -> None:
        """Drops a session's entries at the next call; safe in finalizers."""
        self._gone.append(session)

    def clear(self) -> None:
        """Drops every entry, whoever holds it."""
        with self._lock:
            for entry in list(self._entries):
                self._evict(entry, "closed")

    def _purge(self) -> None:
        gone = {self._gone.popleft() for _ in range(len(self._gone))}
        for entry in self._free(lambda e: e.session in gone):
            self._evict(entry, "session_gone")
        self._gone.extend({e.session for e in self._entries} & gone)  # held; they go later
        ttl = self.limits.idle_ttl_s
        if ttl > 0:
            before = self._clock() - ttl
            for entry in self._free(lambda e: e.accessed < before):
                self._evict(entry, "idle")

    def _free(self, wanted: Callable[[Entry], bool]) -> list[Entry]:
        """Wanted entries that nobody holds."""
        return [e for e in self._entries if not e.users and wanted(e)]

    def _fit(self, entry: Entry) -> bool:
        """Sheds boundaries, oldest first, until the entry fits its session's budget."""
        limit = min(self.limits.per_session_bytes, self.limits.max_bytes)
        assert entry.state is not None
        while entry.n_bytes > limit and entry.boundaries:
            entry.state.keep_boundaries(entry.boundaries[1:])
            entry.measure()
        return entry.n_bytes <= limit

    def _retire(self, new: Entry) -> None:
        limits, now = self.limits, self._clock()

        def victims(wanted: Callable[[Entry], bool]) -> Iterator[Entry]:
            found = self._free(lambda e: e is not new and wanted(e))
            active = {e.session for e in self._entries if now - e.accessed < limits.pin_s}
            pinned = [e for e in found if e.session in active and e.session != new.session]
            extends = [e for e in found if len(e.ids) > len(new.ids) == common_prefix(e.ids, new.ids)]
            yield from sorted(found, key=lambda e: (e in pinned or e in extends, e.accessed, -e.n_bytes, e.created))

        def retire(reason: str, over: Callable[[], bool], wanted: Callable[[Entry], bool]) -> None:
            for victim in victims(wanted):
                if not over():
                    return
                self._evict(victim, reason)

        def own(e: Entry) -> bool:
            return e.session == new.session and e.identity == new.identity

        def n_own() -> int:
            return sum(own(e) for e in self._entries)

        if limits.per_session_entries:
            retire("session_entries", lambda: n_own() > limits.per_session_entries, own)
        retire("session_bytes", lambda: sum(e.n_bytes for e in self._entries if own(e)) > limits.per_session_bytes, own)
        retire("entries", lambda: len(self._entries) > limits.max_entries, lambda e: True)
        retire("bytes", lambda: sum(e.n_bytes for e in self._entries) > limits.max_bytes, lambda e: True)

    def _evict(self, entry: Entry, reason: str) -> None:
        self._entries = [e for e in self._entries if e is not entry]
        age = self._clock() - entry.accessed
        self.evictions.append(Eviction(reason, entry.session, len(entry.ids), entry.n_bytes, age))
        entry.state = None


def _rank(point: RestorePoint, entry: Entry, session: object) -> tuple[int, bool, bool, float]:
    """More tokens first, then what needs no rewinding, then the session's own, then the newest."""
    return point.length, point.kind == "exact", entry.session == session, entry.accessed


def _supersedes(new: Entry, old: Entry) -> bool:
    """Whether an entry can serve whatever an older one of its session can, up to one token."""
    n = len(old.ids)
    return (
        old is not new
        and old.session == new.session
        and old.identity == new.identity
        and n <= len(new.ids)
        and common_prefix(old.ids, new.ids) == n
        and (n == len(new.ids) or n in new.boundaries or n - 1 in new.boundaries)
    )
