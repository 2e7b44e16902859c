"""Loading reads every weight once and keeps nothing beside it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qwenmtp
from qwenmtp.weights import open_model_files

ROOT = Path(__file__).resolve().parents[2]

PEAK = """
import sys
import mlx.core as mx
from qwenmtp import _core
from qwenmtp.weights import open_model_files
m = open_model_files(sys.argv[1])
mx.reset_peak_memory()
model = _core.Model(m.geometry, m.layout, m.files, m.tensors, m.quant, True)
print(mx.get_peak_memory(), mx.get_active_memory())
"""


@pytest.mark.parametrize("checkpoint", ["models/demo", "tests/golden/model/wide"])
def test_peak_memory_of_a_load_stays_below_110_percent_of_the_weights(checkpoint: str) -> None:
    files = open_model_files(ROOT / checkpoint)
    table = sum(Path(f).stat().st_size for f in files.files if "ngram-table" in f)
    run = subprocess.run(
        [sys.executable, "-c", PEAK, str(ROOT / checkpoint)],
        env={**os.environ, "PYTHONPATH": str(Path(qwenmtp.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    peak, active = map(int, run.stdout.split())
    assert active <= peak <= 1.1 * (files.n_bytes - table)
