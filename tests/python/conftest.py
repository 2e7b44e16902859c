"""The demo pack, opened once for all tests of the package."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import qwenmtp

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def demo() -> Iterator[qwenmtp.Model]:
    with qwenmtp.load(ROOT / "models" / "demo", dtype="float32") as model:
        yield model
