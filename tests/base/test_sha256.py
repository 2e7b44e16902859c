"""SHA-256 against hashlib, at every length around the block size and however it is fed."""

import hashlib
import random

import _qwenmtp_testing as core
import pytest

DATA = random.Random(5).randbytes(100_000)


@pytest.mark.parametrize("step", [1, 7, 63, 64, 65, 4096])
def test_equals_hashlib(step):
    for n in range(200):
        assert core.sha256(DATA[:n], step) == hashlib.sha256(DATA[:n]).digest(), n


def test_equals_hashlib_on_many_blocks():
    assert core.sha256(DATA, 12345) == hashlib.sha256(DATA).digest()
