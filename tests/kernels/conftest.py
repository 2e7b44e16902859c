"""Makes `oracle` and `kernels.launch` importable; undoes what a test selects."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    from kernels.launch import ISAS, native

    native.select_isa(ISAS[-1])
    native.set_threads(2)
