#!/usr/bin/env python3
"""The steps of `.ci/nightly` and their receipt: `python tools/nightly.py [STEP ...]`.

A run of some steps replaces their rows in the receipt and keeps the others; each row has its own commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECEIPT = ROOT / "docs" / "receipts" / "nightly.json"


def runtime(library: str) -> str:
    """Path of a sanitizer's runtime, which has to be loaded before Python's own libraries."""
    return subprocess.check_output(["g++", f"-print-file-name={library}"], text=True).strip()


def preset(name: str) -> list[str]:
    """Configure and build one preset; all presets put their modules into python/, so the last one's go first."""
    return [
        "bash",
        "-c",
        f"rm -f python/*.so python/qwenmtp/*.so && cmake --preset {name} -DPython_EXECUTABLE={sys.executable}"
        f" && cmake --build --preset {name}",
    ]


MTPLX = ".venv-mtplx/bin/python"
PINS = "mtplx==2.12.2 'mlx[cpu]==0.32.2' mlx-lm==0.31.3 transformers==5.16.1 numpy==2.4.6"  # tools/oracle/README.md

PYTEST = [sys.executable, "-m", "pytest", "-q"]
ASAN = {
    "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')} {runtime('libstdc++.so.6')}",
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # CPython and libmlx keep their globals
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}
TSAN = {
    "LD_PRELOAD": runtime("libtsan.so"),
    "TSAN_OPTIONS": f"report_signal_unsafe=0:suppressions={ROOT}/tools/tsan.supp",
}

# Name, command, extra environment.
STEPS: list[tuple[str, list[str], dict[str, str]]] = [
    ("build dev", preset("dev"), {}),
    ("slow tests", [*PYTEST, "-m", "slow"], {}),
    (
        "states under 4,096 MiB",
        [*f"{sys.executable} -m qwenmtp.bench.supervisor 4096 300 1200 --command".split(), *PYTEST, "tests/state"],
        {"PYTHONPATH": "python"},
    ),
    (
        "reference",
        ["bash", "-c", f"test -x {MTPLX} || (python3 -m venv .venv-mtplx && {MTPLX} -m pip install -q {PINS})"],
        {},
    ),
    ("AR receipt", [sys.executable, "tools/receipts/ar.py", "models/demo", "--reference", MTPLX], {}),
    ("MTP receipt", [sys.executable, "tools/receipts/mtp_final.py", "models/demo", "--reference", MTPLX], {}),
    ("build asan", preset("asan"), {}),
    ("asan tests", [*PYTEST, "tests/state", "tests/sampling", "tests/decode", "tests/ple", "tests/model"], ASAN),
    ("fuzz checkpoints", [sys.executable, "tools/fuzz_checkpoint.py", "200000"], ASAN),
    ("build tsan", preset("tsan"), {}),
    ("tsan threads", [*PYTEST, "tests/ple/test_stager.py", "tests/kernels/test_pool.py"], TSAN),
    ("build dev again", preset("dev"), {}),
    ("raise sites", [*PYTEST, "--raise-sites"], {}),
    ("wheels, Python 3.12", [sys.executable, "tools/wheels/nightly.py"], {}),
    ("mlx 0.32.2", [sys.executable, "tools/skew.py", "0.32.2"], {}),
]


def recorded() -> dict[str, dict[str, Any]]:
    """Rows of the last receipt by step."""
    rows = json.loads(RECEIPT.read_text())["steps"] if RECEIPT.exists() else []
    return {row["step"]: row for row in rows}


def main() -> int:
    chosen = set(sys.argv[1:]) or {name for name, _, _ in STEPS}
    if unknown := chosen - {name for name, _, _ in STEPS}:
        print(f"no step {sorted(unknown)}, expected some of {[name for name, _, _ in STEPS]}", file=sys.stderr)
        return 2
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    rows = recorded()
    for name, command, extra in STEPS:
        if name not in chosen:
            continue
        started = time.monotonic()
        run = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **extra}, capture_output=True, text=True, check=False
        )
        tail = (run.stdout + run.stderr).strip().splitlines()[-1:] or [""]
        rows[name] = {
            "step": name,
            "date": time.strftime("%Y-%m-%d"),
            "commit": commit,
            "command": " ".join(command).replace(str(ROOT) + "/", "").replace(sys.executable, "python"),
            "seconds": round(time.monotonic() - started, 1),
            "exit": run.returncode,
            "last_line": tail[0].replace(str(ROOT) + "/", ""),
        }
        print(rows[name], flush=True)
        if run.returncode:
            print(run.stdout[-4000:], run.stderr[-4000:], file=sys.stderr)
        RECEIPT.parent.mkdir(parents=True, exist_ok=True)
        steps = [rows[n] for n, _, _ in STEPS if n in rows]
        RECEIPT.write_text(json.dumps({"steps": steps}, indent=1) + "\n")
    return 1 if any(rows[name]["exit"] for name in chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
