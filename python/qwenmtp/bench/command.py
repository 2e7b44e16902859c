"""`qwenmtp bench`: which measurements there are, and how their results are shown and kept."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwenmtp.bench import dispatches, generate, plot
from qwenmtp.bench.checkpoint import checkpoint
from qwenmtp.bench.loop import loop
from qwenmtp.bench.ple import ple
from qwenmtp.bench.receipts import Receipts, add_benchmarks
from qwenmtp.bench.synthetic import MODELS, synthetic_pack
from qwenmtp.bench.timing import BenchResult, Roofline, environment, write_csv
from qwenmtp.errors import InvalidRequest
from qwenmtp.settings import variables
from qwenmtp.terminal import human_bytes, table

BENCHMARKS: dict[str, Callable[[argparse.Namespace, Roofline], list[BenchResult]]] = {
    "decode": generate.decode,
    "prefill": generate.prefill,
    "mtp": generate.mtp,
}
# These have summaries beside their results, and need no model.
WITHOUT_MODEL: dict[str, Callable[[argparse.Namespace], tuple[list[BenchResult], dict[str, Any]]]] = {
    "checkpoint": checkpoint,
    "loop": lambda args: loop(args.repeats, args.mtplx_python),
    "ple": ple,
}


def add_arguments(p: argparse.ArgumentParser) -> None:
    """Adds the command's own arguments."""
    p.add_argument(
        "what",
        nargs="?",
        default="decode",
        choices=sorted([*BENCHMARKS, *WITHOUT_MODEL, "dispatches"]),
        help="default: %(default)s",
    )
    p.add_argument("--model", default="models/demo", metavar="M", help="model folder (default: %(default)s)")
    p.add_argument("--synthetic", choices=sorted(MODELS), help="decode, mtp, prefill: its geometry, random weights")
    p.add_argument("--layers", type=int, default=4, metavar="N", help="layers of it (default: %(default)s)")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), help="compute type (default: by device)")
    p.add_argument(
        "--tokens", type=int, default=64, metavar="N", help="tokens generated, read or stored (default: %(default)s)"
    )
    p.add_argument("--repeats", type=int, default=5, metavar="N", help="timed repetitions (default: %(default)s)")
    p.add_argument("--mtplx-python", metavar="PYTHON", help="loop, ple: time MTPLX too, by a python with it")
    p.add_argument("--gb", type=float, default=0.5, metavar="GB", help="ple: size of the table (default: %(default)s)")
    p.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="ple, checkpoint, --synthetic: where to write (default: a temporary folder)",
    )
    p.add_argument(
        "--chunks", type=int, default=5, metavar="N", help="ple: chunks of 2,048 tokens (default: %(default)s)"
    )
    p.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to FILE")
    p.add_argument("--plot", type=Path, metavar="FILE", help="draw the rates into FILE, a PNG")
    p.add_argument("--receipts", type=Path, metavar="DIR", help="write a receipt directory (docs/receipts.md)")


def run(args: argparse.Namespace) -> int:
    """Measure, print, and keep the results where asked to."""
    if args.what == "dispatches":  # counts, no times
        return dispatches.run(args)
    if not args.synthetic:
        return _run(args, ["--model", str(args.model)])
    if args.what not in BENCHMARKS:
        raise InvalidRequest(f"[bench] --synthetic with {args.what}, expected {', '.join(BENCHMARKS)}")
    with synthetic_pack(args) as args.model:
        return _run(args, ["--synthetic", args.synthetic, "--layers", str(args.layers)])


def _run(args: argparse.Namespace, subject: list[str]) -> int:
    """`subject`: the arguments that say what is measured, for the record."""
    summary: dict[str, Any] = {}
    receipts = None
    if args.receipts:
        model = None if args.what in WITHOUT_MODEL else Path(args.model)
        receipts = Receipts(args.receipts, model, variables())
    roofline = Roofline()
    if args.what in WITHOUT_MODEL:
        results, summary = WITHOUT_MODEL[args.what](args)
        roofline.measure()
    else:
        results = BENCHMARKS[args.what](args, roofline)
    roof, n_threads = roofline.bandwidth, os.cpu_count() or 1
    command = shlex.join(["qwenmtp", "bench", args.what, *subject, "--tokens", str(args.tokens)])
    if args.csv:
        write_csv(args.csv, results, command)
    if args.plot:
        plot.bars(args.plot, command, results)
    red: list[str] = []
    if receipts:
        add_benchmarks(receipts, results)
        red = receipts.close()
    if args.json:
        cases = [r.to_json() for r in results]
        report = {
            "results": {**summary, "cases": cases} if summary else cases,
            "read_bandwidth": roof[1],
            "read_bandwidth_all_threads": roof[n_threads],
            "environment": environment(),
        }
        print(json.dumps(report))
        return 1 if red else 0
    rows = [
        (
            r.name,
            r.shape,
            round(r.rate, 1),
            r.unit + "/s",
            *(round(1e3 * s, 1) for s in (r.median, r.p90, r.best, r.worst)),
            _moved(r, roof[n_threads]),
            _extra(r),
        )
        for r in results
    ]
    print(table(rows, ("case", "shape", "rate", "", "median ms", "p90", "min", "max", "bytes moved", "")))
    for name, value in summary.items():
        print(name, value)
    for n, speed in roof.items():
        print(f"{n} thread{'s read' if n > 1 else ' reads'} {speed / 1e9:.1f} GB/s in this run")
    for text in red:
        print(text)
    return 1 if red else 0


def _moved(r: BenchResult, roof: float) -> str:
    """Bytes a unit of work, their speed, and its share of the roofline."""
    if not r.bytes_moved:
        return ""
    speed = r.bytes_moved / r.median
    return f"{human_bytes(r.bytes_moved / r.work)}/{r.unit}, {speed / 1e9:.1f} GB/s, {speed / roof:.0%} of the roofline"


def _extra(r: BenchResult) -> str:
    return ", ".join(f"{k} {human_bytes(v) if k == 'peak memory' else v}" for k, v in r.extra.items())
