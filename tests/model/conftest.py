"""Small checkpoints of the goldens, loaded and ready to be damaged."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwenmtp import _core
from qwenmtp.weights import open_model_files

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "model"


def load(folder: Path, float32: bool = True) -> Any:
    m = open_model_files(folder)
    return _core.Model(m.geometry, m.layout, m.files, m.tensors, m.quant, float32)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str], Path]:
    """A private copy of a golden checkpoint."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(GOLDEN / name, tmp_path / name))

    return copy
