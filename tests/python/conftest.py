"""The demo pack, opened once for all tests of the package; a stream that is a terminal, or none."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import qwenmtp

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def demo() -> Iterator[qwenmtp.Model]:
    with qwenmtp.load(ROOT / "models" / "demo", dtype="float32") as model:
        yield model


class Stream:
    """Text written to a terminal, or to none."""

    def __init__(self, live: bool):
        self.live, self.text = live, ""

    def isatty(self) -> bool:
        return self.live

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...


@pytest.fixture
def stream() -> type[Stream]:
    return Stream
