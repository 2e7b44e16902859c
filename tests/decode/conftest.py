"""The scripted trunk and the demo model, ready for requests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import _qwenmtp_testing as core
import pytest

from qwenmtp import _core
from qwenmtp.weights import open_model_files

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"


@pytest.fixture
def scripted() -> Callable[..., Any]:
    """Makes a scripted network: scripted(vocab=32, mode="hash", amp=0.25, ...)."""

    def make(**fields: Any) -> Any:
        config = core.ScriptedConfig()
        for name, value in fields.items():
            setattr(config, name, value)
        return core.ScriptedNetwork(config)

    return make


@pytest.fixture(scope="session")
def demo() -> Any:
    files = open_model_files(DEMO)
    return _core.Model(files.geometry, files.layout, files.files, files.tensors, files.quant, True)
