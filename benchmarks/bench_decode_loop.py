"""`qwenmtp bench loop` as a script: host cost of an AR token and of a depth-3 round, beside MTPLX's sampler.

python benchmarks/bench_decode_loop.py [--json] [--repeats N] [--mtplx-python VENV/bin/python]
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # behind an installed one
from qwenmtp.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "loop", *sys.argv[1:]]))
