#!/usr/bin/env python3
"""What CI leaves to the night: abi3 wheels, two builds equal byte for byte, and a wheel beside mlx-lm and mlx-vlm."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BESIDE = ("mlx-vlm==0.7.10", "mlx-lm==0.32.2")


def built(out: Path, work: Path, *arguments: str) -> dict[str, str]:
    """Name and hash of each distribution of one build from nothing."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, HERE / "build.py", "--out", out, "--work", work, *arguments]
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


def main() -> int:
    work = ROOT / "build" / "nightly-wheels"
    first = built(work / "dist", work / "one")
    second = built(work / "dist", work / "another-folder")
    for name in sorted(first | second):
        print(f"{name}: {'equal' if first.get(name) == second.get(name) else 'DIFFERENT'}")
    newer = shutil.which("python3.12") or shutil.which("python3.13")
    if newer is None:
        print("no Python 3.12 or 3.13 here: cp312-abi3 not built", file=sys.stderr)
        return 1
    built(work / "abi3", work / "abi3-work", "--python", newer)
    wheel = next((work / "dist").glob("*linux*.whl"))
    subprocess.run([sys.executable, str(HERE / "try_wheel.py"), str(wheel), "--beside", *BESIDE], check=True)
    print("wheels equal, abi3 built, three packages in one process")
    return 0 if first == second else 1


if __name__ == "__main__":
    sys.exit(main())
