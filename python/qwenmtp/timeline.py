"""The state behind one session: where it is, what a prompt can take over from it, where it goes. Knows no text."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field
from typing import Any

from qwenmtp import _core
from qwenmtp.archive import Archive
from qwenmtp.bank import Entry
from qwenmtp.errors import InvalidRequest
from qwenmtp.identity import SessionIdentity
from qwenmtp.reuse import BoundaryPolicy, Ids, ReusePolicy, as_ids
from qwenmtp.settings import Settings
from qwenmtp.store import SaveReport


@dataclass(slots=True)
class Start:
    """What a request begins with.

    Attributes:
        state: Holds a prefix of the prompt.
        reuse: Where it came from, as `Turn.reuse`.
        entry: The bank's entry that is moved on in place; None where the state is the request's own.
        boundaries: Lengths that the state is to remember.
    """

    state: Any
    reuse: dict[str, Any]
    entry: Entry | None = None
    boundaries: list[int] = field(default_factory=list)

    @property
    def restored(self) -> int:
        """Tokens that need no forward."""
        return int(self.reuse["restored"])


class Timeline:
    """One timeline: its ids, and its state in the bank for as long as that keeps it.

    Not safe for two threads at once; a session sees to that.

    Args:
        archive: Bank and store of the model.
        identity: Of its states.
        id: Its name; None keeps it to itself.
        settings: Of the session.
    """

    def __init__(self, archive: Archive, identity: SessionIdentity, id: str | None, settings: Settings):
        self.identity, self.ids = identity, as_ids(())
        self.entry: Entry | None = None
        self._archive, self._bank, self._engine = archive, archive.bank, archive.engine
        self._id, self._settings = id, settings
        self._key: object = id if id is not None else object()
        self._digest = identity.digest()
        self._miss: str | None = None
        s = settings.session
        self._reuse = ReusePolicy(s.near_prefix, s.block_prefix, s.gap, s.near_min, s.block_min)
        self._boundaries = BoundaryPolicy(
            s.boundaries,
            settings.prefill.chunk,
            settings.prefill.fused_suffix_max,
            s.tail_interval,
            s.tail_backoff,
            s.tail_rung,
        )
        if id is None:
            weakref.finalize(self, self._bank.forget, self._key)

    def fresh(self) -> Any:
        """An empty state."""
        core, speculate = self._engine, self.identity.mode == "mtp"
        return self._engine.run(lambda: _core.State(core.core, speculate))

    def whole(self) -> Any:
        """The state of all ids; one that was evicted is computed again."""
        if self.entry is not None and self.entry.state is not None:
            return self.entry.state
        state, ids = self.fresh(), [int(i) for i in self.ids]
        if not ids:
            return state
        options = {
            "target": (0.0, 1.0, 1, 0.0, 0.0),
            "speculate": self.identity.mode == "mtp",
            "prefill_chunk": self._settings.prefill.chunk,
            "boundaries": self._boundaries.planned(0, len(ids)),
        }

        def compute() -> None:
            decoder = _core.Decoder(self._engine.core, state, ids, options)
            while not decoder.done:
                decoder.step()
            decoder.finish()

        self._engine.run(compute)
        self.take(state, "length")
        return state

    def start(self, ids: list[int], room: int) -> Start:
        """The state that saves a prompt the most tokens: the live one, the bank's, a stored one, or none.

        Args:
            ids: The prompt.
            room: Rows that the turn will need in all.
        """
        start = self._found(as_ids(ids), room)
        start.boundaries = self._boundaries.planned(start.restored, len(ids), start.state.boundaries)
        return start

    def release(self, start: Start) -> None:
        """Ends the lease of a state that was moved on, or put back."""
        if start.entry is not None:
            self._bank.release(start.entry)
            start.entry = None

    def keep_prompt(self, start: Start, n_prompt: int) -> None:
        """Stores what was read of a long prompt, up to its newest boundary, should the answer not be kept."""
        s, state = self._settings.session, start.state
        newest = max((b for b in state.boundaries if b > start.restored), default=0)
        if s.store_on_prefill and newest and n_prompt - start.restored >= s.store_min_suffix:
            kept = self._engine.run(lambda: _copy(state, newest))
            self._bank.put(kept, self.identity, self._key, shared=self._id is not None)

    def commit(self, start: Start, finish: str) -> None:
        """The state that an answer left is the live one from now on.

        Args:
            start: What the request began with.
            finish: How it ended, `stop` or `length`.
        """
        state = start.state
        self._engine.run(lambda: state.keep_boundaries(start.boundaries))
        if start.entry is None:
            self.take(state, finish)
        else:
            self.ids = as_ids(state.ids)
            start.entry.finish, start.entry.source = finish, "live"
            self.entry = start.entry if self._bank.settle(start.entry) else None
        if self._id is not None and self.entry is not None:
            self._archive.schedule(self._id, self.identity, self.entry)

    def take(self, state: Any, finish: str, source: str = "live") -> None:
        """Makes a whole state the live one; nobody else may change it from now on."""
        state.check()
        self.ids = as_ids(state.ids)
        self.entry = self._bank.put(
            state, self.identity, self._key, shared=self._id is not None, finish=finish, source=source
        )

    def forked(self) -> Any:
        """A copy of the state; shares arrays until one of both moves on."""
        return self._engine.run(self.whole().fork)

    @property
    def finish(self) -> str:
        """How the last answer ended."""
        return (self.entry.finish if self.entry else None) or "length"

    def reset(self) -> None:
        """Forgets ids and states in memory."""
        self.ids, self.entry = as_ids(()), None
        self._bank.forget(self._key)

    def save(self, path: str | os.PathLike[str] | None) -> SaveReport:
        """Writes the state to a file, or to the session's own in the store."""
        if not len(self.ids):
            raise InvalidRequest("[session.save] an empty timeline, expected at least one token")
        state = self.whole()
        if path is not None:
            return self._archive.write(path, self._id or "", self.identity, state, self.finish)
        if self._id is None:
            raise InvalidRequest("[session.save] a session without a name, expected a path", details={"field": "id"})
        return self._archive.save(self._id, self.identity, state, self.finish)

    def resume(self) -> bool:
        """Takes up what is stored under the session's name; whether there was something to take up."""
        if self._id is None:
            raise InvalidRequest("[session.resume] a session without a name", details={"field": "id"})
        found, self._miss = self._archive.take_up(self._id, self._digest)
        if found is not None:
            self.take(found.state, found.finish, "store")
        return found is not None

    def _found(self, prompt: Ids, room: int) -> Start:
        bank, miss = self._bank, self._miss
        self._miss = None
        found = bank.find(prompt, self._digest, self._key, self._reuse, shared=self._id is not None)
        if found is not None and found.entry is self.entry and found.point.kind == "exact" and bank.lease(found.entry):
            return Start(found.entry.state, _told(found.point.length, "exact", found.entry.source, miss), found.entry)
        start = None
        if found is not None:
            entry, (length, kind) = found
            try:
                state = self._engine.run(lambda: _copy(entry.state, length))
            finally:
                bank.release(entry)
            start = Start(state, _told(length, kind, entry.source if entry.session == self._key else "bank", miss))
        if self._id is not None:
            better = start.restored if start else 0
            stored, wrong = self._archive.find(self._id, prompt, self._digest, self._reuse, better, room)
            miss = miss or wrong
            if stored is not None:
                return Start(stored.state, _told(len(stored.state), stored.kind, "store", miss))
        if start is not None:
            return start
        return Start(self.fresh(), _told(0, "none", "none", miss or self._reason()))

    def _reason(self) -> str:
        """Why memory had nothing for a prompt."""
        if not len(self.ids):
            return "new_session"
        return "evicted" if self.entry is None or self.entry.state is None else "prefix_divergence"


def _told(restored: int, mode: str, source: str, miss: str | None) -> dict[str, Any]:
    return {"restored": restored, "mode": mode, "source": source, "miss": miss}


def _copy(state: Any, length: int) -> Any:
    """A state of its own, rewound to fewer tokens where asked for."""
    copy = state.fork()
    if length < len(copy):
        copy.rewind(length)
    copy.check()
    return copy
