"""`qwenmtp bench checkpoint` as a script: a state of 1.1 GB saved and restored against plain I/O of the same bytes.

python benchmarks/bench_checkpoint.py [--tokens 32768] [--dir DIR] [--repeats 5] [--csv FILE] [--json]
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # behind an installed one
from qwenmtp.cli import main

if __name__ == "__main__":
    tokens = [] if "--tokens" in sys.argv else ["--tokens", "32768"]
    sys.exit(main(["bench", "checkpoint", *tokens, *sys.argv[1:]]))
