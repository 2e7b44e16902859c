#!/usr/bin/env python3
"""Builds and tests this tree against another MLX: `python3 tools/skew.py 0.32.2 [PYTEST ARGUMENT...]`.

Uses the one setting that a user has, in an environment and a copy of the committed tree of its own under build/skew/.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

STUB = "tests/python/test_stubs.py::test_core_stub_is_current"
ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    version, *arguments = sys.argv[1:]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    work = ROOT / "build" / "skew" / version
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    subprocess.run(["git", "archive", "-o", work / "tree.tar", "HEAD"], cwd=ROOT, check=True)
    shutil.unpack_archive(work / "tree.tar", work / "source")

    def run(*command: str | Path) -> int:
        return subprocess.run(list(map(str, command)), cwd=work / "source", check=False).returncode

    run(sys.executable, "-m", "venv", work / "venv")
    python = work / "venv" / "bin" / "python"
    needed = [r for r in project["build-system"]["requires"] if not r.startswith("mlx")]
    needed += project["project"]["optional-dependencies"]["test"]
    needed += [r for r in project["project"]["dependencies"] if not r.startswith("mlx")]
    defines = (f"cmake.define.QWENMTP_MLX_VERSION={version}", "cmake.define.QWENMTP_TESTING=ON")
    setting = [f"--config-settings={define}" for define in defines]
    return (
        run(python, "-m", "pip", "install", "-q", f"mlx[cpu]=={version}", "ninja", *needed)
        or run(python, "-m", "pip", "install", "-q", ".", "--no-build-isolation", "--no-deps", *setting)
        # The stub names the version that it was made with.
        or run(python, "-m", "pytest", "-q", "--deselect", STUB, *arguments)
    )


if __name__ == "__main__":
    sys.exit(main())
