"""`qwenmtp bench`: which measurements there are, and how their results are shown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwenmtp.bench import generate
from qwenmtp.bench.loop import loop
from qwenmtp.bench.ple import ple
from qwenmtp.bench.timing import BenchResult, environment, read_bandwidth, write_csv
from qwenmtp.terminal import table

BENCHMARKS: dict[str, Callable[[argparse.Namespace], list[BenchResult]]] = {
    "decode": generate.decode,
    "prefill": generate.prefill,
    "mtp": generate.mtp,
}


def add_arguments(p: argparse.ArgumentParser) -> None:
    """Adds the command's own arguments."""
    p.add_argument(
        "what", nargs="?", default="decode", choices=sorted([*BENCHMARKS, "loop", "ple"]), help="default: %(default)s"
    )
    p.add_argument("--model", default="models/demo", metavar="M", help="model folder (default: %(default)s)")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), help="compute type (default: by device)")
    p.add_argument(
        "--tokens", type=int, default=64, metavar="N", help="tokens generated or read (default: %(default)s)"
    )
    p.add_argument("--repeats", type=int, default=5, metavar="N", help="timed repetitions (default: %(default)s)")
    p.add_argument("--mtplx-python", metavar="PYTHON", help="loop, ple: time MTPLX too, by a python with it")
    p.add_argument("--gb", type=float, default=0.5, metavar="GB", help="ple: size of the table (default: %(default)s)")
    p.add_argument(
        "--dir", type=Path, metavar="DIR", help="ple: where the table is written (default: a temporary folder)"
    )
    p.add_argument(
        "--chunks", type=int, default=5, metavar="N", help="ple: chunks of 2,048 tokens (default: %(default)s)"
    )
    p.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to FILE")


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the CSV if asked to."""
    summary: dict[str, Any] = {}
    if args.what == "loop":
        results, summary = loop(args.repeats, args.mtplx_python)
    elif args.what == "ple":
        results, summary = ple(args)
    else:
        results = BENCHMARKS[args.what](args)
    roof = read_bandwidth()
    if args.csv:
        write_csv(args.csv, results, f"qwenmtp bench {args.what} --model {args.model} --tokens {args.tokens}")
    if args.json:
        cases = [r.to_json() for r in results]
        report = {
            "results": {**summary, "cases": cases} if summary else cases,
            "read_bandwidth": roof,
            "environment": environment(),
        }
        print(json.dumps(report))
        return 0
    rows = [
        (r.name, r.shape, round(r.rate, 1), r.unit + "/s", round(1e3 * r.median, 1), round(1e3 * r.p90, 1), _extra(r))
        for r in results
    ]
    print(table(rows, ("case", "shape", "rate", "", "median ms", "p90 ms", "")))
    for name, value in summary.items():
        print(name, value)
    print(f"one thread reads {roof / 1e9:.1f} GB/s in this run")
    return 0


def _extra(r: BenchResult) -> str:
    return ", ".join(f"{k} {v}" for k, v in r.extra.items())
