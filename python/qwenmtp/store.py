"""A folder of QWMTKV02 files: names, limits, prefix lookup, what becomes of a bad file. Knows no tensor and no byte of
the format; refuses folders that are not private."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from qwenmtp import _core
from qwenmtp import checkpoint_files as files
from qwenmtp.errors import CheckpointError
from qwenmtp.reuse import Ids, ReusePolicy, as_ids, common_prefix

# What `qwenmtp bench checkpoint` writes and reads.
SyntheticCheckpoint = _core.SyntheticCheckpoint

T = TypeVar("T")

GIB = 1 << 30


def owner_digest(key: str) -> bytes:
    """SHA-256 of a session key, 32 bytes."""
    return hashlib.sha256(key.encode()).digest()


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of a store. `quota_bytes` None: min(100 GiB, a quarter of free space and store together), but at least two
    copies of the largest file."""

    quota_bytes: int | None = None
    free_floor_bytes: int = 10 * GIB
    hourly_write_bytes: int = 128 * GIB
    min_tokens: int = 512


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One lawful file of a store, by its prologue."""

    name: str
    owner: bytes
    mode: str
    n_tokens: int
    n_boundaries: int
    n_bytes: int
    created_ns: int
    accessed_ns: int


@dataclass(frozen=True, slots=True)
class Match:
    """A stored state that a prompt can continue.

    Attributes:
        entry: The file.
        restore_at: Tokens that need no forward: all N of the file, or the position of a boundary record.
        boundary: Index of that record, None for the whole state.
        common: Length of the common prefix of prompt and file.
    """

    entry: StoreEntry
    restore_at: int
    boundary: int | None
    common: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A file that was not what its name promised, and whether it was removed."""

    name: str
    outcome: str
    reason: str
    removed: bool


@dataclass(frozen=True, slots=True)
class SaveReport:
    """`refused` is None after a save, else `too_short`, `disk_floor`, `write_budget` or `quota`."""

    n_bytes: int
    refused: str | None = None


class Snapshot(Protocol):
    """A state ready to be written; it stays unchanged until `write` returns."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def file_bytes(self) -> int: ...

    def write(self, dir_fd: int, name: str, identity: bytes, owner: bytes) -> None:
        """Publishes the file whole or not at all. Raises CheckpointError."""


class CheckpointStore:
    """The files of one identity below a root that all identities share.

    `<root>/v2/<identity, 32 hex>/<owner, 32 hex>.qwmtkv`, folders 0700, files 0600. Several processes may use one root:
    the last rename wins, readers take no lock, and quota and clean-up step aside when another process is at them.
    Methods may be called from any thread.

    Args:
        root: Created if missing; not a link, the user's own, on a local file system.
        identity: `SessionIdentity.digest()`.
        limits: Bounds.
        clock: Seconds since the epoch.
        free_bytes: Free space for a path; None asks the file system.

    Raises:
        CheckpointError: `unsafe_path` when the root may not hold private files.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        identity: bytes,
        *,
        limits: StoreLimits | None = None,
        clock: Callable[[], float] = time.time,
        free_bytes: Callable[[int], int] | None = None,
    ):
        self.limits = limits or StoreLimits()
        self.identity = identity
        self.rejections: deque[Rejection] = deque(maxlen=256)
        self._clock = clock
        self._free_bytes = free_bytes or _free_bytes
        self._lock = threading.RLock()
        self._writes: deque[tuple[float, int]] = deque()
        self._index: dict[str, tuple[tuple[int, ...], StoreEntry]] = {}
        self._ids: dict[str, tuple[tuple[int, ...], Ids, list[int]]] = {}
        self._root = files.open_store(root)
        self._folder = identity.hex()[:32]
        self._dir = files.open_folder(self._root, self._folder)
        files.remove_dead_temporaries(self._root, self._clock())

    def close(self) -> None:
        """Closes the folder descriptors. The files stay."""
        for fd in (self._dir, self._root):
            with suppress(OSError):
                os.close(fd)

    def name_of(self, key: str | bytes) -> str:
        """File name of a session key, or of its digest."""
        return _digest(key).hex()[:32] + files.SUFFIX

    def entries(self) -> list[StoreEntry]:
        """Every lawful file of this identity, least recently used first. Bad files are dealt with on the way."""
        with self._lock:
            found = [e for name in files.managed_names(self._dir) if (e := self._entry(name)) is not None]
            names = {e.name for e in found}
            for cache in (self._index, self._ids):
                for gone in cache.keys() - names:
                    del cache[gone]
        return sorted(found, key=lambda e: e.accessed_ns)

    def find(self, ids: Ids | Sequence[int], policy: ReusePolicy | None = None) -> Match | None:
        """The stored state that saves a prompt the most tokens, whoever owns it.

        Args:
            ids: Prompt token ids.
            policy: When a file that the prompt leaves is worth rewinding; None is always.

        Returns:
            None when no file has a whole prefix of the prompt, nor a boundary record inside the common prefix.
        """
        prompt, policy = as_ids(ids), policy or ReusePolicy()
        best: Match | None = None
        for entry in sorted(self.entries(), key=lambda e: -e.n_tokens):
            if best is not None and best.restore_at >= entry.n_tokens:
                break
            match = self._match(entry, prompt, policy)
            if match is not None and (best is None or match.restore_at > best.restore_at):
                best = match
        return best

    def load(self, key: str | bytes, read: Callable[[_core.CheckpointFile, bytes, bytes], T]) -> T | None:
        """Reads one owner's file.

        Args:
            key: Session key, or the `owner` of an entry.
            read: Called with the open file, the identity and the owner digest; it checks and reads, and must leave
                the live state alone until it returns.

        Returns:
            What `read` returned, or None when there is no file.

        Raises:
            CheckpointError: The file was refused; it is already removed where the outcome says so.
        """
        name = self.name_of(key)
        file: _core.CheckpointFile | None = None
        try:
            file = _core.CheckpointFile(self._dir, name)
            out = read(file, self.identity, _digest(key))
        except CheckpointError as e:
            if e.details.get("reason") == "absent":
                return None
            self._reject(name, e, file)
            raise
        self._touch(name)
        return out

    def save(self, key: str | bytes, snapshot: Snapshot, *, explicit: bool = False) -> SaveReport:
        """Writes one owner's file and then retires others for the quota.

        Args:
            key: Session key, or its digest.
            snapshot: The state.
            explicit: The user asked for it: only the disk can refuse.

        Raises:
            CheckpointError: `busy` (disk full, I/O error) or `cancelled`; the old file is whole.
        """
        n_bytes = snapshot.file_bytes
        with self._lock:
            refused = None if explicit else self._refusal(snapshot)
            if refused is not None:
                return SaveReport(n_bytes, refused)
            self._writes.append((self._clock(), n_bytes))
        name = self.name_of(key)
        snapshot.write(self._dir, name, self.identity, _digest(key))
        self._touch(name)
        files.retire(self._root, self._quota(n_bytes), keep=f"{self._folder}/{name}")
        return SaveReport(n_bytes)

    def remove(self, key: str | bytes) -> bool:
        """Forgets one owner's file; whether there was one."""
        try:
            os.unlink(self.name_of(key), dir_fd=self._dir)
        except FileNotFoundError:
            return False
        return True

    def _entry(self, name: str) -> StoreEntry | None:
        try:
            st = os.stat(name, dir_fd=self._dir, follow_symlinks=False)
        except FileNotFoundError:
            return None
        signature = _signature(st)
        known = self._index.get(name)
        if known is not None and known[0] == signature:
            return replace(known[1], accessed_ns=st.st_atime_ns)
        file: _core.CheckpointFile | None = None
        try:
            file = _core.CheckpointFile(self._dir, name)
            entry = _entry_of(name, file.prologue(self.identity), st)
        except CheckpointError as e:
            self._reject(name, e, file)
            return None
        self._index[name] = (signature, entry)
        return entry

    def _match(self, entry: StoreEntry, prompt: Ids, policy: ReusePolicy) -> Match | None:
        with self._lock:
            stored = self._stored_ids(entry)
        if stored is None:
            return None
        ids, boundaries = stored
        common = common_prefix(ids, prompt)
        point = policy.restore_point(common, len(ids), boundaries, len(prompt))
        if point is None:
            return None
        return Match(entry, point.length, boundaries.index(point.length) if point.kind == "boundary" else None, common)

    def _stored_ids(self, entry: StoreEntry) -> tuple[Ids, list[int]] | None:
        signature = self._index[entry.name][0] if entry.name in self._index else ()
        known = self._ids.get(entry.name)
        if known is None or known[0] != signature:
            file: _core.CheckpointFile | None = None
            try:
                file = _core.CheckpointFile(self._dir, entry.name)
                header = file.header(self.identity, entry.owner)
            except CheckpointError as e:
                self._reject(entry.name, e, file)
                return None
            known = (signature, np.frombuffer(header.ids, "<i4"), header.boundaries)
            self._ids[entry.name] = known
        return known[1], known[2]

    def _reject(self, name: str, error: CheckpointError, file: _core.CheckpointFile | None) -> None:
        """Removes the file if its outcome says so and the name still means what was read."""
        reason = error.details.get("reason", "")
        if reason == "absent":
            return
        removed = False
        if error.outcome in files.REMOVED_OUTCOMES and file is not None:
            with suppress(OSError):
                if os.stat(name, dir_fd=self._dir, follow_symlinks=False).st_ino == file.inode:
                    os.unlink(name, dir_fd=self._dir)
                    removed = True
        self.rejections.append(Rejection(name, error.outcome, reason, removed))

    def _refusal(self, snapshot: Snapshot) -> str | None:
        """Why a save that nobody asked for does not happen."""
        n_bytes, limits, now = snapshot.file_bytes, self.limits, self._clock()
        while self._writes and self._writes[0][0] <= now - 3600:
            self._writes.popleft()
        if snapshot.n_tokens < limits.min_tokens:
            return "too_short"
        if self._free_bytes(self._root) - n_bytes < limits.free_floor_bytes:
            return "disk_floor"
        if sum(n for _, n in self._writes) + n_bytes > limits.hourly_write_bytes:
            return "write_budget"
        if n_bytes > self._quota(n_bytes):
            return "quota"
        return None

    def _quota(self, n_bytes: int) -> int:
        if self.limits.quota_bytes is not None:
            return self.limits.quota_bytes
        sizes = [n for _, _, n in files.managed_files(self._root)]
        share = (self._free_bytes(self._root) + sum(sizes)) // 4
        return max(min(100 * GIB, share), 2 * max([n_bytes, *sizes]))

    def _touch(self, name: str) -> None:
        """Sets the access time, which orders eviction; the modification time stays."""
        with suppress(FileNotFoundError):
            st = os.stat(name, dir_fd=self._dir, follow_symlinks=False)
            ns = (int(self._clock() * 1e9), st.st_mtime_ns)
            os.utime(name, ns=ns, dir_fd=self._dir, follow_symlinks=False)


def _digest(key: str | bytes) -> bytes:
    return owner_digest(key) if isinstance(key, str) else key


def _signature(st: os.stat_result) -> tuple[int, ...]:
    return (st.st_ino, st.st_mtime_ns, st.st_size)


def _entry_of(name: str, prologue: dict[str, Any], st: os.stat_result) -> StoreEntry:
    owner: bytes = prologue["owner"]
    if owner.hex()[:32] + files.SUFFIX != name:
        raise CheckpointError(f"[store] {name} holds another session", "incompatible", details={"reason": "owner"})
    return StoreEntry(
        name,
        owner,
        prologue["mode"],
        prologue["n_tokens"],
        prologue["n_boundaries"],
        prologue["file_bytes"],
        prologue["created_ns"],
        st.st_atime_ns,
    )


def _free_bytes(fd: int) -> int:
    st = os.statvfs(fd)
    return st.f_bavail * st.f_frsize
