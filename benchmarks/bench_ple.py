"""`qwenmtp bench ple` as a script: n-gram rows by this stager, bare preads, a NumPy mapping and MTPLX, in one run.

python benchmarks/bench_ple.py --gb 4 [--dir DIR] [--repeats N] [--mtplx-python VENV/bin/python] [--csv FILE] [--json]
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # behind an installed one
from qwenmtp.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "ple", *sys.argv[1:]]))
