"""`qwenmtp bench checkpoint`: a state of the released geometry saved and restored, against plain I/O of the same bytes.

Random bytes in MTP mode; 32,768 tokens are 1.12 GB. Arms alternate. `save` is the writer with durability barrier,
against one thread that writes the file's bytes from memory and syncs; `restore` reads and checks into fresh memory,
against one thread that reads into fresh memory, both from the page cache as the writes left it. Every write makes a new
file that takes the old one's name, as a save must.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwenmtp.bench.timing import BenchResult, interleaved, result
from qwenmtp.store import SyntheticCheckpoint

STEP = 64 << 20  # of the plain arms
STATM = Path("/proc/self/statm")


class _Peak:
    """Growth of the resident set within a block, sampled every millisecond; 0 where there is no /proc."""

    def __enter__(self) -> _Peak:
        self._stop = threading.Event()
        self.start = self.top = self._resident()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _resident(self) -> int:
        return int(STATM.read_text().split()[1]) * mmap.PAGESIZE if STATM.exists() else 0

    def _watch(self) -> None:
        while not self._stop.wait(0.001):
            self.top = max(self.top, self._resident())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self.top - self.start


def _plain_write(folder: Path, data: mmap.mmap) -> None:
    fd = os.open(folder / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with memoryview(data) as view:
        at = 0
        while at < len(data):
            at += os.write(fd, view[at : at + STEP])
    os.fsync(fd)
    os.close(fd)
    (folder / "new").rename(folder / "plain")


def _plain_read(path: Path) -> None:
    n_bytes = path.stat().st_size
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    memory = libc.malloc(n_bytes)
    view = memoryview((ctypes.c_char * n_bytes).from_address(memory)).cast("B")
    with path.open("rb", buffering=0) as file:
        at = 0
        while n := file.readinto(view[at : at + STEP]):
            at += n
    view.release()
    libc.free(memory)
    if at != n_bytes:
        raise OSError(f"{path}: {at} of {n_bytes} bytes")


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def checkpoint(args: Namespace) -> tuple[list[BenchResult], dict[str, Any]]:
    """All arms, and the numbers that have targets: ratios of throughput, memory beyond the payload, checksums' time."""
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="bench-checkpoint-") as name:
        folder = Path(name)
        dir_fd = os.open(folder, os.O_RDONLY)
        state = SyntheticCheckpoint(args.tokens)
        state.write(dir_fd, "state")
        n_bytes = (folder / "state").stat().st_size
        data = mmap.mmap(-1, n_bytes)
        with (folder / "state").open("rb") as file:
            file.readinto(data)
        growth: list[int] = []

        def restore() -> None:
            with _Peak() as peak:
                SyntheticCheckpoint.read(dir_fd, "state")
            growth.append(peak.growth - state.payload_bytes)

        arms = {
            "plain write": lambda: _plain_write(folder, data),
            "save": lambda: state.write(dir_fd, "state"),
            "plain read": lambda: _plain_read(folder / "state"),
            "restore": restore,
        }
        seconds = interleaved(arms, args.repeats, 0)
        crc_s, sha_s = _seconds(state.crc), _seconds(state.header_hash)
        os.close(dir_fd)
    shape = f"{args.tokens} tokens, {n_bytes} bytes"
    results = [result(arm, s, shape=shape, work=n_bytes / 1e9, unit="GB") for arm, s in seconds.items()]
    median = {arm: statistics.median(s) for arm, s in seconds.items()}
    return results, {
        "save_share_of_plain": round(median["plain write"] / median["save"], 3),
        "restore_share_of_plain": round(median["plain read"] / median["restore"], 3),
        "restore_beyond_payload_bytes": max(growth),
        "crc_s": round(crc_s, 4),
        "crc_path": state.crc_path,
        "header_sha256_s": round(sha_s, 5),
    }
