"""Saving and restoring a state of the released geometry against plain I/O of the same bytes in the same run.

    python benchmarks/bench_checkpoint.py [--folder DIR] [--tokens 32768] [--repetitions 5] [--json]

32,768 tokens of random bytes in MTP mode are 1.12 GB. Arms alternate. `save` is the writer with durability barrier,
against one thread that writes the file's bytes from memory and syncs; `restore` reads and checks into fresh memory,
against one thread that reads into fresh memory, both from the page cache as the writes left it. Ratio is plain time by
our time, of the medians. Peak is the growth of the resident set over the payload while restoring. The share of the
checksums is their time over the same bytes on one thread against the time of the plain arm.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from qwenmtp import _core  # noqa: E402

STEP = 64 << 20  # of the plain arms


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


class Peak:
    """Largest resident set of a block, sampled every millisecond; 0 where /proc is missing."""

    def __enter__(self) -> Peak:
        self._stop = threading.Event()
        self.known = Path("/proc/self/statm").exists()
        self.start = self.top = resident_bytes() if self.known else 0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self.known and not self._stop.wait(0.001):
            self.top = max(self.top, resident_bytes())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self.top - self.start


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def plain_write(path: Path, data: mmap.mmap) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    view = memoryview(data)
    for at in range(0, len(data), STEP):
        os.write(fd, view[at : at + STEP])
    os.fsync(fd)
    os.close(fd)
    view.release()


def plain_read(path: Path) -> None:
    n_bytes = path.stat().st_size
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    memory = libc.malloc(n_bytes)
    buffer = (ctypes.c_char * n_bytes).from_address(memory)
    view = memoryview(buffer).cast("B")
    with path.open("rb", buffering=0) as file:
        at = 0
        while n := file.readinto(view[at : at + STEP]):
            at += n
    view.release()
    libc.free(memory)
    assert at == n_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write; the temporary folder if not given")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    times: dict[str, list[float]] = {k: [] for k in ("save", "plain_write", "restore", "plain_read")}
    growth = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path, plain = Path(folder) / "state", Path(folder) / "plain"
        dir_fd = os.open(folder, os.O_RDONLY)
        state = _core.SyntheticCheckpoint(args.tokens)
        state.write(dir_fd, "state")
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            data = mmap.mmap(-1, file_bytes)
            file.readinto(data)
        for _ in range(args.repetitions):
            times["plain_write"].append(seconds(lambda: plain_write(plain, data)))
            times["save"].append(seconds(lambda: state.write(dir_fd, "state")))
            times["plain_read"].append(seconds(lambda: plain_read(path)))
            with Peak() as peak:
                times["restore"].append(seconds(lambda: _core.SyntheticCheckpoint.read(dir_fd, "state")))
            growth.append(peak.growth - state.payload_bytes)
        crc_s, sha_s = seconds(state.crc), seconds(state.header_hash)
        os.close(dir_fd)
    median = {k: statistics.median(v) for k, v in times.items()}
    result = {
        "tokens": args.tokens,
        "payload_bytes": state.payload_bytes,
        "file_bytes": file_bytes,
        "seconds": times,
        "median_s": median,
        "save_ratio": median["plain_write"] / median["save"],
        "restore_ratio": median["plain_read"] / median["restore"],
        "restore_growth_over_payload_bytes": max(growth),
        "crc_s": crc_s,
        "crc_path": state.crc_path,
        "header_sha256_s": sha_s,
    }
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        gb = file_bytes / 1e9
        for arm, s in median.items():
            print(f"{arm:12} {s:7.3f} s   {gb / s:6.2f} GB/s   of {sorted(times[arm])[0]:.3f}..{max(times[arm]):.3f}")
        print(f"save {result['save_ratio']:.2f} and restore {result['restore_ratio']:.2f} of plain throughput")
        print(f"peak of a restore: payload + {max(growth) / 1e6:.1f} MB; checksums: CRC {crc_s:.3f} s "
              f"({state.crc_path}), header SHA-256 {sha_s:.4f} s")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
