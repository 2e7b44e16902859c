"""`qwenmtp plan` and `qwenmtp table`: what a model needs in memory, and its n-gram table as a row file."""

from __future__ import annotations

import argparse
import json
from typing import Any

from qwenmtp import table as ngram_table
from qwenmtp.engine import device
from qwenmtp.plan import MemoryPlan, memory_plan
from qwenmtp.settings import Settings
from qwenmtp.terminal import ProgressLine, human_bytes, table
from qwenmtp.weights import open_model_files

PARTS = ("weights", "table", "hot_rows", "kv", "recurrent", "boundaries", "transients", "total", "peak", "budget")


def plan_arguments(p: argparse.ArgumentParser) -> None:
    """Adds the arguments of `plan`."""
    p.add_argument("model", metavar="MODEL", help="model folder")
    p.add_argument("--context", type=int, required=True, metavar="N", help="tokens of the session, prompt and answer")
    p.add_argument("--residency", choices=("ssd", "resident", "auto"), help="where the n-gram table is read from")
    p.add_argument("--memory", metavar="B", help="bytes that may be used, such as 96GiB (default: by this machine)")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="default: %(default)s")


def run_plan(args: argparse.Namespace) -> int:
    """Prints the plan; exit code 4 when it does not fit."""
    files = open_model_files(args.model)
    wishes: dict[str, Any] = {"ple_residency": args.residency, "memory_budget": args.memory}
    settings = Settings.from_env(pack=files.path, **{k: v for k, v in wishes.items() if v is not None})
    found = memory_plan(
        files,
        context=args.context,
        dtype=args.dtype,
        residency=settings.ple.residency,
        budget=settings.memory.budget,
        hot_bytes=settings.ple.hot_bytes,
        chunk=settings.prefill.chunk,
        boundaries=settings.session.boundaries,
        device=device(),
    )
    print(json.dumps(found.to_json()) if args.json else _shown(found))
    return 0 if found.fits else 4


def _shown(plan: MemoryPlan) -> str:
    rows = [(part.replace("_", " "), human_bytes(getattr(plan, part)), f"{getattr(plan, part):,}") for part in PARTS]
    verdict = "fits" if plan.fits else "does not fit"
    return (
        f"{plan.context} tokens, {plan.dtype}, n-gram table {plan.residency}: {verdict}\n"
        f"{table(rows, ('part', 'size', 'bytes'))}"
    )


def table_arguments(p: argparse.ArgumentParser) -> None:
    """Adds the arguments of `table`."""
    p.add_argument("action", choices=("interleave", "verify"), help="write the row file; compare it with the table")
    p.add_argument("model", metavar="MODEL", help="model folder")
    p.add_argument("--file", metavar="F", help="the row file (default: inside the model folder)")


def run_table(args: argparse.Namespace) -> int:
    """Exit code 1 when the row file differs from the table."""
    with ProgressLine(args.action) as line:
        work = ngram_table.interleave if args.action == "interleave" else ngram_table.verify
        report = work(args.model, args.file, line)
    same = report.first_difference is None
    if args.json:
        print(json.dumps(report.to_json()))
    else:
        verdict = "" if same else f", row {report.first_difference} differs"
        print(f"{report.path}: {report.rows} rows, {human_bytes(report.n_bytes)}{verdict}")
    return 0 if same else 1
