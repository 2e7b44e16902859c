"""Makes `msl.harness`, `msl.families` and `oracle` importable from the tests here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
