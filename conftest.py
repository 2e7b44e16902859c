"""Lets tests use the modules of a developer build, where there is one."""

import sys
from pathlib import Path

PYTHON = Path(__file__).parent / "python"
if any((PYTHON / "qwenmtp").glob("_core*.so")):
    sys.path.insert(0, str(PYTHON))
