"""QWMTKV02 files and their folders without a model: inspect, verify, list, retire. Refuses folders that are not
private; knows no byte of the format and no session."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qwenmtp import _core
from qwenmtp.errors import CheckpointError

SUFFIX = ".qwmtkv"
REMOVED_OUTCOMES = frozenset({"old_version", "corrupt", "incompatible"})
_MANAGED = re.compile(r"[0-9a-f]{32}\.qwmtkv")
_FOLDER = re.compile(r"[0-9a-f]{32}")
_TEMPORARY = re.compile(r"\.tmp-(\d+)-[0-9a-f]+")
_STALE_TEMPORARY_S = 3600

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a header says; `outcome` and `reason` tell why there is nothing else when it was refused."""

    path: str
    outcome: str = "ok"
    reason: str = ""
    mode: str = ""
    n_tokens: int = 0
    history_len: int = 0
    position_base: int = 0
    boundaries: tuple[int, ...] = ()
    finish: str = ""
    created_ns: int = 0
    accessed_ns: int = 0
    identity: str = ""
    owner: str = ""
    writer_id: str = ""
    n_tensors: int = 0
    header_bytes: int = 0
    file_bytes: int = 0
    meta: Any = None

    @property
    def ok(self) -> bool:
        """Whether the file was accepted."""
        return self.outcome == "ok"

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON-ready object."""
        return asdict(self)


def store_root(chosen: str | None) -> Path:
    """The folder of all stores: the one chosen by `checkpoint.dir`, else the system's folder for caches."""
    if chosen is not None:
        return Path(chosen)
    caches = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / caches / "qwenmtp" / "sessions"


@contextmanager
def open_checkpoint(path: PathLike) -> Iterator[_core.CheckpointFile]:
    """Opens a file given by path. Raises CheckpointError `unsafe_path` or `busy`."""
    target = Path(path)
    try:
        dir_fd = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        reason = "absent" if e.errno in (errno.ENOENT, errno.ENOTDIR) else "io"
        raise CheckpointError(f"[checkpoint.open] {path}: {e.strerror}", "busy", details={"reason": reason}) from None
    try:
        yield _core.CheckpointFile(dir_fd, target.name)
    finally:
        os.close(dir_fd)


def inspect(path: PathLike) -> CheckpointInfo:
    """Reads and checks the header of one file, no tensor. Never raises for a bad file: see `outcome`."""
    return _examine(path, payload=False)


def verify(path: PathLike) -> CheckpointInfo:
    """`inspect`, and every CRC, hash and padding byte. Needs 4 MiB of memory whatever the file holds."""
    return _examine(path, payload=True)


def ls(root: PathLike) -> list[CheckpointInfo]:
    """Every managed file below a store's root, last used first; a root without a store gives none."""
    found = []
    for store, path in _stores(root):
        found += [_examine(path / name, payload=False) for _, name, _ in managed_files(store)]
    return sorted(found, key=lambda info: -info.accessed_ns)


def prune(
    root: PathLike, *, quota_bytes: int | None = None, older_than_s: float | None = None, dry_run: bool = False
) -> list[CheckpointInfo]:
    """Removes managed files of a store.

    Args:
        root: The store's root.
        quota_bytes: Remove the least recently used until the rest fits; 0 removes all.
        older_than_s: Remove what was not used for so long.
        dry_run: Only report.

    Returns:
        The files that were, or would be, removed; none while another process cleans up.
    """
    removed = []
    for store, path in _stores(root):
        before = (time.time() - older_than_s) * 1e9 if older_than_s is not None else 0.0
        with exclusive(store) as mine:
            for name in _victims(store, quota_bytes, before) if mine else []:
                removed.append(_examine(path / name, payload=False))
                if not dry_run:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=store)
    return removed


def retire(store_fd: int, quota_bytes: int, *, keep: str) -> None:
    """Removes least recently used files until a store fits its quota, unless another process is at it.

    Args:
        store_fd: The folder `v2`.
        quota_bytes: Bound for the sum of all files.
        keep: Path below `v2` that stays whatever happens.
    """
    with exclusive(store_fd) as mine:
        for name in _victims(store_fd, quota_bytes, 0.0, keep) if mine else []:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=store_fd)


def remove_dead_temporaries(store_fd: int, now: float) -> None:
    """Removes temporary files whose writer is gone, or that are an hour old, unless another process is at it."""
    with exclusive(store_fd) as mine:
        for folder in _folders(store_fd) if mine else []:
            with _subfolder(store_fd, folder) as fd:
                for name in os.listdir(fd):  # noqa: PTH208 - relative to a descriptor
                    found = _TEMPORARY.fullmatch(name)
                    if found is None:
                        continue
                    with suppress(FileNotFoundError):
                        age = now - os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime
                        if age > _STALE_TEMPORARY_S or not _alive(int(found[1])):
                            os.unlink(name, dir_fd=fd)


def managed_names(dir_fd: int) -> list[str]:
    """Names in one identity's folder that belong to the store."""
    return sorted(name for name in os.listdir(dir_fd) if _MANAGED.fullmatch(name))


def managed_files(store_fd: int) -> list[tuple[int, str, int]]:
    """(access time ns, path below `v2`, bytes) of every managed name, least recently used first."""
    files = []
    for folder in _folders(store_fd):
        with _subfolder(store_fd, folder) as fd:
            for name in managed_names(fd):
                with suppress(FileNotFoundError):
                    st = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    files.append((st.st_atime_ns, f"{folder}/{name}", st.st_size))
    return sorted(files)


@contextmanager
def exclusive(store_fd: int) -> Iterator[bool]:
    """Whether this process holds the store's lock for the block; never waits."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("LOCK", flags, 0o600, dir_fd=store_fd)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def open_store(root: PathLike) -> int:
    """Descriptor of `<root>/v2`, both made if missing.

    Raises:
        CheckpointError: `unsafe_path` when the root is a link, another user's, or not on a local file system.
    """
    try:
        Path(root).mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise _unsafe(f"{root} is not a folder", "not_a_folder") from None
    root_fd = _open_private(root)
    try:
        if not _core.is_local(root_fd):
            raise _unsafe(f"{root} is on a network file system", "not_local")
        return open_folder(root_fd, "v2")
    finally:
        os.close(root_fd)


def open_folder(parent_fd: int, name: str) -> int:
    """Descriptor of a subfolder with mode 0700, made if missing."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent_fd)
    fd = _open_private(name, parent_fd)
    if stat.S_IMODE(os.fstat(fd).st_mode) != 0o700:
        os.fchmod(fd, 0o700)
    return fd


def _examine(path: PathLike, *, payload: bool) -> CheckpointInfo:
    try:
        with open_checkpoint(path) as file:
            prologue = file.prologue()
            header = file.header()
            if payload:
                file.verify(header)
    except CheckpointError as e:
        return CheckpointInfo(str(path), e.outcome, e.details["reason"], accessed_ns=_accessed_ns(path))
    hexed = {k: prologue.pop(k).hex() for k in ("identity", "owner", "writer_id")}
    del prologue["n_boundaries"]
    return CheckpointInfo(
        str(path),
        boundaries=tuple(header.boundaries),
        accessed_ns=_accessed_ns(path),
        meta=_meta(header.meta),
        **hexed,
        **prologue,
    )


def _meta(raw: bytes) -> Any:
    """META as JSON, or as text when it is none: nothing is decided by it."""
    text = raw.decode(errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _accessed_ns(path: PathLike) -> int:
    try:
        return os.lstat(path).st_atime_ns
    except OSError:
        return 0


def _stores(root: PathLike) -> Iterator[tuple[int, Path]]:
    """The descriptor and path of `<root>/v2`, if there is one."""
    path = Path(root) / "v2"
    if path.is_dir():
        fd = _open_private(path)
        try:
            yield fd, path
        finally:
            os.close(fd)


def _victims(store_fd: int, quota_bytes: int | None, before_ns: float, keep: str | None = None) -> list[str]:
    """Paths below `v2`, oldest first, that were not used since `before_ns` or do not fit the quota. Files of other
    formats count but are never chosen."""
    files = managed_files(store_fd)
    total = sum(n_bytes for _, _, n_bytes in files)
    out = []
    for accessed_ns, path, n_bytes in files:
        over = quota_bytes is not None and total > quota_bytes
        if (over or accessed_ns < before_ns) and path != keep and _is_ours(store_fd, path):
            out.append(path)
            total -= n_bytes
    return out


def _is_ours(store_fd: int, path: str) -> bool:
    folder, name = path.split("/")
    with _subfolder(store_fd, folder) as fd:
        try:
            _core.CheckpointFile(fd, name).prologue()
        except CheckpointError as e:
            return e.outcome in REMOVED_OUTCOMES
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _folders(store_fd: int) -> list[str]:
    return sorted(name for name in os.listdir(store_fd) if _FOLDER.fullmatch(name))


@contextmanager
def _subfolder(store_fd: int, name: str) -> Iterator[int]:
    fd = _open_private(name, store_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _unsafe(message: str, reason: str) -> CheckpointError:
    return CheckpointError(f"[store] {message}", "unsafe_path", details={"reason": reason})


def _open_private(path: PathLike, dir_fd: int | None = None) -> int:
    """Opens a folder that is no link and the user's own."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as e:
        if e.errno in (errno.ENOTDIR, errno.ELOOP):
            raise _unsafe(f"{path} is a link, or not a folder", "not_a_folder") from None
        raise
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise _unsafe(f"{path} belongs to another user", "foreign_owner")
    return fd
