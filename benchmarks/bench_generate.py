"""`qwenmtp bench mtp` as a script: tokens a second of plain decoding, depths 1 to 3 and auto, greedy and sampled,
with acceptance by depth.

python benchmarks/bench_generate.py [--model DIR] [--json] [--tokens N] [--repeats N]
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # behind an installed one
from qwenmtp.cli import main

DEMO = Path(__file__).resolve().parent.parent / "models" / "demo"

if __name__ == "__main__":
    model = [] if "--model" in sys.argv else ["--model", str(DEMO)]
    sys.exit(main(["bench", "mtp", *model, *sys.argv[1:]]))
