"""Undoes what a test selects."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    from kernels.launch import ISAS, native

    native.select_isa(ISAS[-1])
    native.set_threads(2)
