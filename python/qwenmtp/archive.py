"""What the sessions of one model share: the bank in memory, the store on disk, and the way between them."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qwenmtp import _core
from qwenmtp._build import MLX_VERSION
from qwenmtp._version import __version__
from qwenmtp.bank import GIB, BankLimits, Entry, SessionBank
from qwenmtp.checkpoint_files import open_checkpoint, store_root
from qwenmtp.engine import Engine
from qwenmtp.errors import CHECKPOINT_CODES, CheckpointError, InvalidRequest, QwenMtpError
from qwenmtp.identity import ModelDigests, SessionIdentity, session_identity
from qwenmtp.reuse import BoundaryPolicy, Ids, ReusePolicy
from qwenmtp.settings import Settings
from qwenmtp.store import CheckpointStore, SaveReport, StoreLimits, owner_digest
from qwenmtp.writer import Writer

IDLE_S = 2.0  # a named session that rests so long is written
NEW_TOKENS = 4096  # and one that grew so much since, at once
FLUSH_S = 10.0  # for what is still unwritten when the model closes


@dataclass(frozen=True, slots=True)
class Restored:
    """A state from a file."""

    state: Any
    kind: str
    finish: str


@dataclass(frozen=True, slots=True)
class _Image:
    """A state on its way to disk."""

    image: Any
    durability: str
    cancel: Any

    @property
    def n_tokens(self) -> int:
        return int(self.image.n_tokens)

    @property
    def file_bytes(self) -> int:
        return int(self.image.file_bytes)

    def write(self, dir_fd: int, name: str, identity: bytes, owner: bytes) -> None:
        self.image.write(dir_fd, name, identity, owner, durability=self.durability, cancel=self.cancel)


class Archive:
    """Bank and files of one model.

    Args:
        engine: The model.

    Attributes:
        bank: Its resident states.
        failures: Automatic saves that could not be, newest last.
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self.failures: deque[Exception] = deque(maxlen=256)
        self._settings = engine.settings.checkpoint
        self._digests = ModelDigests(engine.files)
        self._stores: dict[bytes, CheckpointStore] = {}
        self._lock = threading.Lock()
        self._writer = Writer(IDLE_S)
        self._cancel = _core.CancelFlag()
        self._written: dict[tuple[bytes, str], int] = {}
        self.bank = SessionBank(self._digests.model, self._bank_limits())

    def identity(self, mode: str, depth: int | str, settings: Settings, cache_scope: str) -> SessionIdentity:
        """The identity of a session."""
        return session_identity(
            self._digests,
            dtype=self.engine.dtype,
            mode=mode,
            depth=None if settings.session.share_across_depth else depth,
            history_policy=settings.decode.history_policy,
            device=_core.device(),
            lanes=("capture_commit",) if settings.verify.capture_commit else (),
            cache_scope=cache_scope,
        )

    def store(self, identity: bytes) -> CheckpointStore | None:
        """The files of one identity; None where checkpoints are off.

        Raises:
            CheckpointError: `unsafe_path`: the folder may not hold private files; `busy`: it cannot be made.
        """
        s = self._settings
        if s.mode == "off":
            return None
        with self._lock:
            if identity not in self._stores:
                limits = StoreLimits(
                    quota_bytes=None if s.max_bytes == "auto" else s.max_bytes,
                    free_floor_bytes=s.floor_bytes,
                    hourly_write_bytes=s.hourly_bytes,
                    min_tokens=s.min_tokens,
                )
                root = store_root(s.dir)
                try:
                    self._stores[identity] = CheckpointStore(root, identity, limits=limits)
                except OSError as e:
                    raise CheckpointError(
                        f"[store.open] {root}: {e.strerror}", "busy", details={"reason": "io"}
                    ) from None
            return self._stores[identity]

    def find(
        self, key: str, prompt: Ids, identity: bytes, policy: ReusePolicy, better_than: int, room: int
    ) -> tuple[Restored | None, str | None]:
        """The stored state that saves a prompt the most tokens.

        Args:
            key: The session that asks.
            prompt: Its prompt.
            identity: Its identity.
            policy: What is worth restoring.
            better_than: Tokens that memory offers.
            room: Rows that the turn will need in all.

        Returns:
            The state, and the code of what was wrong with the session's own file.
        """
        if self._settings.mode != "on":
            return None, None

        def look(store: CheckpointStore) -> Restored | None:
            match = store.find(prompt, policy)
            if match is None or match.restore_at <= better_than:
                return None
            return store.load(match.entry.owner, self._reader(room, match.boundary))

        return self._asked(key, identity, look)

    def take_up(self, key: str, identity: bytes) -> tuple[Restored | None, str | None]:
        """The state stored under a name, whole, and the code of what was wrong with it."""
        if self._settings.mode != "on":
            return None, None
        return self._asked(key, identity, lambda store: store.load(key, self._reader(0, None)))

    def read(self, path: str | os.PathLike[str], identity: Callable[[str], SessionIdentity]) -> tuple[Restored, str]:
        """A state from a file of the user's; identity is called with its mode.

        Raises:
            CheckpointError: The outcome of sessions.md 2.8; the file stays.
        """
        with open_checkpoint(path) as file:
            mode = file.prologue()["mode"]
            return self._reader(0, None)(file, identity(mode).digest(), None), mode

    def save(self, key: str, identity: SessionIdentity, state: Any, finish: str) -> SaveReport:
        """Writes a named session on request."""
        store = self.store(identity.digest())
        if store is None:
            raise InvalidRequest("[session.save] checkpoints are off (checkpoint.mode), expected a path to save to")
        self._writer.drop((identity.digest(), key))
        report = store.save(key, self._image(state, identity, finish), explicit=True)
        self._written[identity.digest(), key] = len(state)
        return report

    def write(
        self, path: str | os.PathLike[str], key: str, identity: SessionIdentity, state: Any, finish: str
    ) -> SaveReport:
        """Writes a state to a file of the user's."""
        image, target = self._image(state, identity, finish), Path(path)
        try:
            dir_fd = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as e:
            raise CheckpointError(
                f"[session.save] {target.parent}: {e.strerror}", "busy", details={"reason": "io"}
            ) from None
        try:
            image.write(dir_fd, target.name, identity.digest(), owner_digest(key))
        finally:
            os.close(dir_fd)
        return SaveReport(image.file_bytes)

    def schedule(self, key: str, identity: SessionIdentity, entry: Entry) -> None:
        """Has a named session written once it rests, or at once when it has grown a lot."""
        digest, n = identity.digest(), len(entry.ids)
        if self._settings.mode == "off" or n < self._settings.min_tokens:
            return
        grown = n - self._written.get((digest, key), 0)

        def write() -> bool:
            return self._write(key, identity, entry)

        self._writer.put((digest, key), write, 0.0 if grown >= NEW_TOKENS else IDLE_S)

    def close(self) -> None:
        """Writes what waits, for at most ten seconds, and drops all resident states."""
        if not self._writer.close(FLUSH_S):
            self._cancel.set()
            self._writer.close(FLUSH_S)
        self.bank.clear()
        for store in self._stores.values():
            store.close()
        self._stores.clear()

    def _asked(
        self, key: str, identity: bytes, look: Callable[[CheckpointStore], Restored | None]
    ) -> tuple[Restored | None, str | None]:
        """What the store gave, and what it had against the session's own file. Never raises for a bad file."""
        try:
            store = self.store(identity)
        except CheckpointError as e:
            return None, e.code
        assert store is not None
        known = {id(r) for r in store.rejections}
        found = None
        try:
            found = look(store)
        except CheckpointError as e:
            if e.code == "cancelled":
                raise
        except OSError:
            return None, CHECKPOINT_CODES["busy"]
        own = [r for r in store.rejections if id(r) not in known and r.name == store.name_of(key)]
        return found, CHECKPOINT_CODES[own[-1].outcome] if own else None

    def _reader(self, room: int, boundary: int | None) -> Callable[[Any, bytes, bytes | None], Restored]:
        engine = self.engine

        def read(file: Any, identity: bytes, owner: bytes | None) -> Restored:
            prologue = file.prologue()
            state = engine.run(
                lambda: _core.load_state(
                    engine.core,
                    file,
                    identity,
                    owner,
                    max_context=engine.context,
                    max_payload=self.bank.limits.max_bytes,
                    spare_rows=max(0, room - prologue["n_tokens"]),
                    boundary=boundary,
                )
            )
            kind = "exact" if boundary is None else "boundary"
            return Restored(state, kind, prologue["finish"])

        return read

    def _image(self, state: Any, identity: SessionIdentity, finish: str) -> _Image:
        meta = {"qwenmtp": __version__, "mlx": MLX_VERSION, "identity": asdict(identity)}
        text = json.dumps(meta, sort_keys=True, separators=(",", ":"))
        budget = self._settings.boundaries

        def build() -> Any:
            copy = state.fork()
            known = copy.boundaries
            copy.keep_boundaries(BoundaryPolicy(budget).kept(known, known[-1] + 1 if known else 0))
            return _core.StateImage(self.engine.core, copy, finish, text)

        return _Image(self.engine.run(build), self._settings.durability, self._cancel)

    def _write(self, key: str, identity: SessionIdentity, entry: Entry) -> bool:
        """Writes an entry that nobody asked to be written; False while its session is busy."""
        digest = identity.digest()
        try:
            store = self.store(digest)
            with self.bank.held(entry) as state:
                if state is None or store is None or entry.finish is None:
                    return not entry.leased
                n, image = len(entry.ids), self._image(state, identity, entry.finish)
            if store.save(key, image).refused is None:
                self._written[digest, key] = n
        except (QwenMtpError, OSError) as e:
            self.failures.append(e)
        return True

    def _bank_limits(self) -> BankLimits:
        s, engine = self.engine.settings.session, self.engine
        plan = engine.plan(engine.context, engine.has_mtp)
        free = plan.budget - plan.weights - plan.table - plan.hot_rows - plan.transients
        total = min(max(free, GIB), 48 * GIB) if s.max_bytes == "auto" else s.max_bytes
        own = min(total * 2 // 3, max(free, GIB) // 2) if s.per_session_bytes == "auto" else s.per_session_bytes
        return BankLimits(total, s.max_entries, own, s.per_session_entries, s.idle_ttl_s, s.pin_s)
