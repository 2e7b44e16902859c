"""The one way this project measures: warm-up, interleaved repetitions, median and spread, a roofline beside."""

from __future__ import annotations

import csv
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qwenmtp._build import BUILD_TYPE, COMPILER, MLX_VERSION
from qwenmtp._version import __version__


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One measured case; seconds are per call of the case.

    Attributes:
        name: What was done.
        shape: Sizes that matter, as text.
        repeats: Timed calls.
        median: Seconds; likewise p90, best and worst.
        work: Units of work a call does, such as tokens; rate = work / median.
        unit: Name of that unit.
        bytes_moved: Bytes read and written by a call, 0 if not counted.
        extra: Further numbers of the case.
    """

    name: str
    shape: str
    repeats: int
    median: float
    p90: float
    best: float
    worst: float
    work: float = 0.0
    unit: str = ""
    bytes_moved: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Units of work a second at the median."""
        return self.work / self.median if self.median > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """All fields and the rate, JSON-ready."""
        return {**asdict(self), "rate": self.rate}


def interleaved(cases: Mapping[str, Callable[[], Any]], repeats: int = 5, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of each case's calls; the cases take turns, so that a slow spell of the machine meets all of them."""
    for _ in range(warmup):
        for case in cases.values():
            case()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            started = time.perf_counter()
            case()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def result(name: str, seconds: Sequence[float], *, shape: str = "", **fields: Any) -> BenchResult:
    """The summary of one case's seconds."""
    ordered = sorted(seconds)
    return BenchResult(
        name=name,
        shape=shape,
        repeats=len(ordered),
        median=statistics.median(ordered),
        p90=ordered[min(len(ordered) - 1, round(0.9 * (len(ordered) - 1)))],
        best=ordered[0],
        worst=ordered[-1],
        **fields,
    )


class Roofline:
    """What plain reads of memory reach, by number of threads; measured in turns with the cases that stand beside it."""

    def __init__(self, n_bytes: int = 1 << 28):
        self._n_bytes, self._data = n_bytes, np.ones(n_bytes // 8, np.int64)
        self._best = dict.fromkeys(sorted({1, os.cpu_count() or 1}), float("inf"))

    def measure(self) -> None:
        """Reads the bytes once by each number of threads."""
        for n, best in self._best.items():
            with ThreadPoolExecutor(n) as pool:
                parts = np.array_split(self._data, n)
                list(pool.map(len, parts))  # starts the threads
                started = time.perf_counter()
                list(pool.map(np.max, parts))
                self._best[n] = min(best, time.perf_counter() - started)

    @property
    def bandwidth(self) -> dict[int, float]:
        """Threads -> bytes a second, the best of all measurements."""
        return {n: self._n_bytes / best for n, best in self._best.items()}


def peak_memory() -> int:
    """Most bytes that this process has held in memory so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def environment() -> dict[str, Any]:
    """What a number needs beside it to mean something."""
    return {
        "qwenmtp": __version__,
        "mlx": MLX_VERSION,
        "build": f"{COMPILER} {BUILD_TYPE}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "system": platform.platform(),
        "commit": _commit(),
    }


def write_csv(path: Path, results: Sequence[BenchResult], command: str) -> None:
    """Append the results, one row each, with everything that is needed to repeat them."""
    facts = environment()
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        rows = [
            {
                "date": time.strftime("%Y-%m-%d"),
                **{k: v for k, v in r.to_json().items() if k != "extra"},
                "extra": json.dumps(r.extra),
                **facts,
                "command": command,
            }
            for r in results
        ]
        writer = csv.DictWriter(file, list(rows[0]))
        if new:
            writer.writeheader()
        writer.writerows(rows)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    """The commit of a source tree, with + where files differ; empty for an installed package."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        run = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
        return run.stdout.strip() if run.returncode == 0 else ""

    try:
        head = git("rev-parse", "--short", "HEAD")
        return head + "+" if head and git("status", "--porcelain") else head
    except OSError:
        return ""
