"""`qwenmtp bench ple`: gathering n-gram rows by this stager, bare preads, a NumPy mapping and MTPLX, side by side.

Writes a table of random 4-bit rows (160 values in groups of 32; planar as packs have it, and as a row file), runs every
contender in its own process on the same row ids, and deletes the table. Cold runs begin with POSIX_FADV_DONTNEED on the
table; where a system has none they are left out.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from qwenmtp import table
from qwenmtp.bench import ple_contenders
from qwenmtp.bench.ple_contenders import (
    CHUNK,
    CONTENDERS,
    EOS,
    GROUP,
    HEADS,
    PAST,
    PLANAR,
    ROW_BYTES,
    ROWS,
    VOCAB,
    WINDOWS,
    WORK,
)
from qwenmtp.bench.timing import BenchResult, result

N_WINDOWS = 200


def write_table(path: Path, n_rows: int) -> None:
    """A planar side file of random rows, in the layout of an MTPLX pack."""
    header: dict[str, Any] = {"__metadata__": {"ngram_bits": "4", "ngram_group_size": str(GROUP)}}
    at = 0
    kinds = (("weight", "U32", 20), ("scales", "BF16", 5), ("biases", "BF16", 5))
    for (name, dtype, columns), width in zip(kinds, ROW_BYTES, strict=True):
        extent = [at, at + n_rows * width]
        header[f"ngram.{name}"] = {"dtype": dtype, "shape": [n_rows, columns], "data_offsets": extent}
        at = extent[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng, step = np.random.default_rng(0), 1 << 18
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for width in ROW_BYTES:
            for first in range(0, n_rows, step):
                n = min(step, n_rows - first) * width
                if width == ROW_BYTES[0]:
                    f.write(rng.bytes(n))
                else:  # finite bf16 numbers
                    f.write((rng.standard_normal(n // 2, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes())
        f.flush()
        os.fsync(f.fileno())


def write_work(path: Path, n_rows: int, n_chunks: int) -> None:
    """The spans to gather: uniform ids, so that nearly every row of a chunk is distinct, the worst for caches."""
    config, rng = table.synthetic_ngram(n_rows, VOCAB, EOS), np.random.default_rng(1)
    out: dict[str, Any] = {}
    for kind, tokens, count in [("chunk", CHUNK, n_chunks), *((f"window{w}", w, N_WINDOWS) for w in WINDOWS)]:
        ids = rng.integers(0, VOCAB - 400, (count, tokens)).astype(np.int32)
        out[f"{kind}.ids"] = ids
        out[f"{kind}.rows"] = np.stack([np.asarray(table.ngram_rows(config, i, PAST)).reshape(-1) for i in ids])
    np.savez(path, **out)


def ple(args: Namespace) -> tuple[list[BenchResult], dict[str, Any]]:
    """Every case of every contender; the contenders take turns `args.repeats` times, their times are pooled."""
    n_rows = int(args.gb * 1e9) // sum(ROW_BYTES)
    pythons = dict.fromkeys(CONTENDERS, sys.executable)
    if args.mtplx_python:
        pythons["MTPLX planar"] = args.mtplx_python
    else:
        del pythons["MTPLX planar"]
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="bench-ple-") as name:
        folder = Path(name)
        write_table(folder / PLANAR, n_rows)
        table.write_row_file(table.PleTable.open(ple_contenders.planar_spec(folder / PLANAR)), folder / ROWS)
        write_work(folder / WORK, n_rows, args.chunks)
        for _ in range(args.repeats):
            for contender, python in pythons.items():
                command = [python, ple_contenders.__file__, contender, name]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                for case in json.loads(done.stdout.splitlines()[-1]):
                    cases.setdefault((case["case"], contender), []).append(case)
    order = list(dict.fromkeys(case for case, _ in cases))
    ordered = sorted(cases.items(), key=lambda item: order.index(item[0][0]))
    results = [_pooled(case, contender, runs) for (case, contender), runs in ordered]
    return results, _summary(results)


def _pooled(case: str, contender: str, runs: list[dict[str, Any]]) -> BenchResult:
    seconds = [s for run in runs for s in run["seconds"]]
    extra = {"p99_ms": round(1e3 * float(np.percentile(seconds, 99)), 4)}
    if "cpu_s" in runs[0]:
        extra["cpu_ms"] = round(1e3 * float(np.mean([run["cpu_s"] for run in runs])), 4)
    if "hidden" in runs[0]:
        extra["hidden"] = round(float(np.mean([run["hidden"] for run in runs])), 4)
    extra["peak_mib"] = max(run["peak_bytes"] for run in runs) >> 20
    return result(contender, seconds, shape=case, work=runs[0].get("rows", 0), unit="rows", extra=extra)


def _summary(results: list[BenchResult]) -> dict[str, Any]:
    """The numbers that have targets; what this system or this run cannot tell is left out."""
    found = {(r.shape, r.name): r for r in results}

    def ratio(case: str, slow: str, fast: str) -> float | None:
        pair = found.get((case, slow)), found.get((case, fast))
        return pair[0].median / pair[1].median if pair[0] and pair[1] else None

    rows = f"{CHUNK * HEADS} rows"
    ahead = found.get(("chunk read ahead", "stager row file x8"))
    summary = {
        "cold_share_of_bare_reads": ratio(f"{rows} cold", "bare reads row file x8", "stager row file x8"),
        "cached_times_mtplx": ratio(f"{rows} cached", "MTPLX planar", "stager row file x8"),
        "cached_planar_times_mtplx": ratio(f"{rows} cached", "MTPLX planar", "stager planar x8"),
        "wait_p99_us": 1e3 * found["wait of a cached token", "stager row file x8"].extra["p99_ms"],
        "hidden_by_read_ahead": ahead.extra["hidden"] if ahead else None,
    }
    return {name: round(value, 3) for name, value in summary.items() if value is not None}
