#!/usr/bin/env python3
"""Write python/qwenmtp/_core.pyi from the built module: `python tools/stubs.py [--check]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nanobind.stubgen import StubGen

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "python" / "qwenmtp" / "_core.pyi"
if any((ROOT / "python" / "qwenmtp").glob("_core*.so")):
    sys.path.insert(0, str(ROOT / "python"))


def generated() -> str:
    """The stub of the module as it is built now."""
    from qwenmtp import _core

    generator = StubGen(module=_core, quiet=True)
    generator.put(_core)
    return generator.get().rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if parser.parse_args().check:
        return 0 if TARGET.read_text() == generated() else 1
    TARGET.write_text(generated())
    return 0


if __name__ == "__main__":
    sys.exit(main())
