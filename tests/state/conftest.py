"""A folder for checkpoint files, and the independent writer and reader of the format."""

import importlib.util
import os
from pathlib import Path

import _qwenmtp_testing as core
import pytest

from qwenmtp.errors import CheckpointError

ORACLE = Path(__file__).parent.parent / "oracle" / "qwmtkv02.py"


@pytest.fixture(scope="session")
def oracle():
    spec = importlib.util.spec_from_file_location("qwmtkv02", ORACLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Folder:
    """One folder with its descriptor; `read` returns what the core makes of a file."""

    def __init__(self, path: Path):
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def names(self) -> list[str]:
        return sorted(p.name for p in self.path.iterdir())

    def put(self, name: str, data: bytes) -> None:
        (self.path / name).write_bytes(data)
        (self.path / name).chmod(0o600)

    def read(self, name: str, geometry=None, **expect):
        return core.checkpoint_read(self.fd, name, geometry, **expect)

    def rejection(self, name: str, geometry=None, **expect) -> tuple[str, str, int]:
        """(outcome, reason, tensor bytes asked for) of a read that must fail."""
        before = core.checkpoint_allocated_bytes()
        with pytest.raises(CheckpointError) as caught:
            self.read(name, geometry, **expect)
        asked = core.checkpoint_allocated_bytes() - before
        return caught.value.outcome, caught.value.details["reason"], asked


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path)
    yield made
    os.close(made.fd)
