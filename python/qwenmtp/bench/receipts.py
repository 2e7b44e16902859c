"""Receipt directories: what ran, on which machine and bytes, and what came out. Never lets a probe pass for a speed.

    python -m qwenmtp.bench.receipts DIR [--model MODEL] [--quote RUN_ID]

judges a directory: every check passed, every receipt there and unedited (its run_id is the hash of its content), the
environment the one it ran in; with --model the artifacts are read again. --quote prints the speed of one receipt, and
refuses one that is not a benchmark. Exit code 0 green, 1 red.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qwenmtp.bench.timing import BenchResult, environment
from qwenmtp.errors import InvalidRequest

SCHEMA = 1
ENVIRONMENT, RECEIPTS, CHECKS = "environment.json", "receipts.jsonl", "checks.json"
# A probe has raw seconds and nothing else; a benchmark has no other fields than these either.
PROBE = {"kind", "prefill_s", "decode_s", "final_s", "total_s"}
BENCHMARK = {
    "kind", "unit", "work", "warmup", "repetitions", "interleaved", "min_s", "median_s", "p90_s", "max_s", "bytes_moved"
}  # fmt: skip
REPETITIONS = 5

Row = dict[str, Any]
Status = Literal["pass", "fail", "skip"]


def digest(path: Path) -> str:
    """SHA-256 of a file, read now."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def artifacts(model: Path) -> list[Row]:
    """Every file of a model folder with its size and its SHA-256, read now."""
    files = sorted(p for p in model.iterdir() if p.is_file())
    return [{"file": p.name, "bytes": p.stat().st_size, "sha256": digest(p)} for p in files]


def run_id(row: Row) -> str:
    """Hash of a receipt's content."""
    content = json.dumps({k: v for k, v in row.items() if k != "run_id"}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:20]


@dataclass
class Receipts:
    """A receipt directory while it is written.

    Args:
        folder: Made if missing; must hold no receipts yet.
        model: Model folder whose artifacts are hashed now and again at the end.
        variables: Environment; of it the QWENMTP_* and MTPLX_* variables are recorded.
        facts: More of the environment: settings with provenance, geometry, residency, the reference's commit.

    Raises:
        InvalidRequest: The folder holds receipts.
    """

    folder: Path
    model: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    _checks: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / RECEIPTS).exists():
            raise InvalidRequest(f"[receipts] {self.folder} holds receipts, expected a new folder")
        self._artifacts = artifacts(self.model) if self.model else []
        found = {
            "schema": SCHEMA,
            "host": _host(),
            "toolchain": {**environment(), "mlx_files": _mlx_files()},
            "model": {"path": str(self.model), "artifacts": self._artifacts} if self.model else None,
            "variables": {k: v for k, v in self.variables.items() if k.startswith(("QWENMTP_", "MTPLX_"))},
            **self.facts,
        }
        _publish(self.folder / ENVIRONMENT, json.dumps(found, indent=1))
        self._env_digest = digest(self.folder / ENVIRONMENT)

    def add(self, suite: str, case: str, **content: Any) -> str:
        """Append one receipt, on disk when this returns; its run_id.

        Args:
            suite: What it belongs to.
            case: What was run, unique within the suite.
            **content: Fields of reference/sessions.md 6.2; `timing`, `memory` and `equality` are objects of their own.
        """
        row = {
            "schema": SCHEMA,
            "suite": suite,
            "case": case,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "argv": sys.argv,
            "env_digest": self._env_digest,
            **content,
        }
        row["run_id"] = run_id(json.loads(json.dumps(row)))
        with (self.folder / RECEIPTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return str(row["run_id"])

    def check(
        self, title: str, status: Status, *, reason: str = "", receipts: Sequence[str] = (), seconds: float = 0.0
    ) -> None:
        """Record a check on these receipts."""
        self._checks.append(
            {
                "id": len(self._checks) + 1,
                "title": title,
                "command": " ".join(sys.argv),
                "status": status,
                "reason": reason,
                "receipts": list(receipts),
                "duration_s": round(seconds, 3),
            }
        )

    def close(self) -> list[str]:
        """Write checks.json and judge the directory; what is wrong with it."""
        if self.model:
            same = artifacts(self.model) == self._artifacts
            self.check("the artifacts are the ones hashed at the start", "pass" if same else "fail")
        evidence = [{"file": n, "sha256": digest(self.folder / n)} for n in (ENVIRONMENT, RECEIPTS)]
        _publish(self.folder / CHECKS, json.dumps({"checks": self._checks, "evidence": evidence}, indent=1))
        return judge(self.folder)


def add_benchmarks(receipts: Receipts, results: Sequence[BenchResult]) -> None:
    """Receipts of timings that `bench.timing.interleaved` took, warm-up and all."""
    ids = []
    for r in results:
        timing = {
            "kind": "benchmark", "unit": r.unit, "work": r.work, "warmup": 1, "repetitions": r.repeats,
            "interleaved": True, "min_s": r.best, "median_s": r.median, "p90_s": r.p90, "max_s": r.worst,
            "bytes_moved": r.bytes_moved,
        }  # fmt: skip
        memory = {"peak": r.extra.get("peak memory")}
        ids.append(receipts.add("bench", f"{r.name} {r.shape}".strip(), timing=timing, memory=memory, notes=r.extra))
    receipts.check("measured with a warm-up and at least 5 interleaved repetitions", "pass", receipts=ids)


def judge(folder: Path, model: Path | None = None) -> list[str]:
    """What is wrong with a receipt directory; empty when it is green.

    Args:
        folder: The directory.
        model: Model folder to compare with the artifacts recorded.
    """
    try:
        known = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
        lines = (folder / RECEIPTS).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        report = json.loads((folder / CHECKS).read_text(encoding="utf-8"))
        found = [text for row in rows for text in _judge_row(row, digest(folder / ENVIRONMENT))]
        found += _judge_checks(report["checks"], [row["run_id"] for row in rows])
        for e in report["evidence"]:
            if digest(folder / e["file"]) != e["sha256"]:
                found.append(f"{e['file']}: not the file that was checked")
        if model is not None and artifacts(model) != known["model"]["artifacts"]:
            found.append(f"{model}: not the artifacts of the receipts")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{folder}: {type(error).__name__}: {error}"]
    return found


def quote(row: Row) -> str:
    """The speed that a receipt supports.

    Raises:
        InvalidRequest: It is no benchmark.
    """
    timing = row.get("timing") or {}
    if timing.get("kind") != "benchmark" or _timing_faults(timing):
        raise InvalidRequest(
            f"[receipts.quote] {row.get('suite')} {row.get('case')!r} is a {timing.get('kind', 'row without times')}, "
            "expected a benchmark: a probe says nothing about speed"
        )
    rate = timing["work"] / timing["median_s"]
    return (
        f"{row['case']}: {rate:.1f} {timing['unit']}/s, median {1e3 * timing['median_s']:.2f} ms of "
        f"{timing['repetitions']}, {1e3 * timing['min_s']:.2f} to {1e3 * timing['max_s']:.2f} ms"
    )


def _judge_row(row: Row, env_digest: str) -> list[str]:
    name = f"receipt {row['run_id']}"
    found = [f"{name}: {text}" for text in _timing_faults(row.get("timing") or {"kind": "probe"})]
    if row["schema"] != SCHEMA:
        found.append(f"{name}: schema {row['schema']}, expected {SCHEMA}")
    if run_id(row) != row["run_id"]:
        found.append(f"{name}: edited, its content hashes to {run_id(row)}")
    if row["env_digest"] != env_digest:
        found.append(f"{name}: of another environment")
    return found


def _timing_faults(timing: Mapping[str, Any]) -> list[str]:
    """Why these times are neither a probe's nor a benchmark's."""
    kind = timing.get("kind")
    if kind not in ("probe", "benchmark"):
        return [f"timing.kind {kind!r}, expected probe or benchmark"]
    allowed = PROBE if kind == "probe" else BENCHMARK
    found = [f"timing.{name} in a {kind}" for name in timing if name not in allowed]
    if kind == "benchmark":
        found += [f"timing.{name} missing" for name in sorted(BENCHMARK - timing.keys())]
        if not found and not (timing["repetitions"] >= REPETITIONS and timing["warmup"] and timing["interleaved"]):
            found.append(f"a benchmark without warm-up or {REPETITIONS} interleaved repetitions")
    return found


def _judge_checks(checks: Sequence[Row], ids: Sequence[str]) -> list[str]:
    found = []
    for c in checks:
        if c["status"] == "fail" or (c["status"] == "skip" and not c["reason"]):
            found.append(f"check {c['id']} {c['title']}: {c['status']}, {c['reason'] or 'without a reason'}")
    named = [i for c in checks for i in c["receipts"]]
    found += [f"receipt {i}: missing" for i in dict.fromkeys(named) if i not in ids]
    found += [f"receipt {i}: twice" for i in dict.fromkeys(ids) if ids.count(i) > 1]
    found += [f"receipt {i}: of no check" for i in dict.fromkeys(ids) if i not in named]
    if not any(c["status"] == "pass" for c in checks):
        found.append("no check passed")
    return found


def _publish(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _mlx_files() -> Row:
    """Hashes of the MLX binaries in use: the library and, on a Mac, its kernels."""
    spec = importlib.util.find_spec("mlx")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [p for f in folders for p in Path(f, "lib").glob("*mlx*") if p.suffix in (".so", ".dylib", ".metallib")]
    return {p.name: digest(p) for p in sorted(found)}


def _host() -> Row:
    """What of this machine can move a number: memory, power, heat, pressure."""
    host: Row = {"cores": os.cpu_count(), "system": platform.platform()}
    if sys.platform == "darwin":
        for name, command in (
            ("chip", "sysctl -n machdep.cpu.brand_string"), ("memory_bytes", "sysctl -n hw.memsize"),
            ("build", "sw_vers -buildVersion"), ("power", "pmset -g batt"), ("thermal", "pmset -g therm"),
            ("memory_pressure", "sysctl -n kern.memorystatus_vm_pressure_level"), ("sdk", "xcrun --show-sdk-version"),
        ):  # fmt: skip
            with contextlib.suppress(OSError):
                run = subprocess.run(command.split(), capture_output=True, text=True, check=False)
                host[name] = run.stdout.strip()
        return host
    host["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name, pattern in (
        ("power_online", "sys/class/power_supply/*/online"), ("thermal", "sys/class/thermal/thermal_zone*/temp"),
        ("memory_pressure", "proc/pressure/memory"), ("load", "proc/loadavg"),
    ):  # fmt: skip
        for path in sorted(Path("/").glob(pattern)):
            with contextlib.suppress(OSError):
                host.setdefault(name, []).append(path.read_text().strip())
    return host


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--model", type=Path, help="model folder to compare with the recorded artifacts")
    parser.add_argument("--quote", metavar="RUN_ID", help="print the speed of this receipt")
    args = parser.parse_args(arguments)
    found = judge(args.folder, args.model)
    for text in found:
        print(text, file=sys.stderr)
    if args.quote and not found:
        rows = [json.loads(line) for line in (args.folder / RECEIPTS).read_text(encoding="utf-8").splitlines()]
        try:
            print(quote(next((r for r in rows if r["run_id"] == args.quote), {"case": args.quote})))
        except InvalidRequest as error:
            print(error, file=sys.stderr)
            return 1
    print(f"{args.folder}: {'red, ' + str(len(found)) + ' findings' if found else 'green'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
