"""Lets tests use the modules of a developer build, where there is one, and interrupt what they start."""

import signal
import sys
from pathlib import Path

PYTHON = Path(__file__).parent / "python"
if any((PYTHON / "qwenmtp").glob("_core*.so")):
    sys.path.insert(0, str(PYTHON))

# A shell's background job ignores Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
