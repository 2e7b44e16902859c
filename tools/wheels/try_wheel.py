#!/usr/bin/env python3
"""Installs a wheel into a fresh environment and uses it: `python3 tools/wheels/try_wheel.py WHEEL [--beside P...]`.

Checks that the import is quick and starts nothing, that text is generated from a folder that is not the repository, and
that packages named with `--beside` resolve and run in one process with it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMPORT_SECONDS = 0.3

IMPORT = """
import json, os, sys, time
started = time.perf_counter()
import qwenmtp
seconds = time.perf_counter() - started
heavy = [name for name in ("mlx.core", "numpy", "tokenizers", "jinja2", "qwenmtp._core") if name in sys.modules]
print(json.dumps({"seconds": seconds, "heavy": heavy, "threads": len(os.listdir("/proc/self/task"))}))
"""
BESIDE = """
import sys, mlx.core as mx, mlx_lm, mlx_vlm, qwenmtp
from mlx_lm.models.cache import KVCache
cache = KVCache()
keys, _ = cache.update_and_fetch(mx.ones((1, 1, 2, 4)), mx.ones((1, 1, 2, 4)))
with qwenmtp.load(sys.argv[1]) as model:
    session = model.session()
    n = sum(len(r.ids) for r in session.generate("def main(argv):", max_tokens=8))
print(mlx_lm.__version__, mlx_vlm.__version__, qwenmtp.__version__, float(keys.sum()), n)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--beside", nargs="+", default=[], metavar="PACKAGE", help="mlx-lm and mlx-vlm, with versions")
    args = parser.parse_args()
    model = str(ROOT / "models" / "demo")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        python = f"{folder}/venv/bin/python"

        def output(*command: str) -> str:
            return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout

        output(python, "-m", "pip", "install", "-q", f"{args.wheel.resolve()}[cpu]")
        output(python, "-c", IMPORT)  # compiles the bytecode, as an installer would
        found = min((json.loads(output(python, "-c", IMPORT)) for _ in range(5)), key=lambda f: f["seconds"])
        print(f"import: {found}, allowed {IMPORT_SECONDS} s")
        if found["seconds"] > IMPORT_SECONDS or found["heavy"] or found["threads"] != 1:
            return 1
        command = f"{folder}/venv/bin/qwenmtp"
        print(output(command, "--version").strip())
        options = ("--temperature", "0", "--max-tokens", "8", "--json")
        turn = json.loads(output(command, "generate", "--model", model, "def main(argv):", *options))
        print(f"generate: {turn['text']!r}")
        if len(turn["ids"]) != 8:
            return 1
        if args.beside:
            output(python, "-m", "pip", "install", "-q", *args.beside)
            output(python, "-m", "pip", "check")
            print(f"in one process: {output(python, '-c', BESIDE, model).strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
