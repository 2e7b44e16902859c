"""`qwenmtp bench dispatches` as a script: an accelerator's launches of a step and of a round, released geometry.

python benchmarks/bench_dispatches.py [--json] [--csv FILE]
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # behind an installed one
from qwenmtp.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "dispatches", *sys.argv[1:]]))
