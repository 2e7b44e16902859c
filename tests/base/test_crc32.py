"""CRC-32 against zlib: every path, length, alignment and continuation."""

import random
import zlib

import _qwenmtp_testing as core
import pytest

DATA = random.Random(4).randbytes(3 << 20)


@pytest.mark.parametrize("crc32", [core.crc32, core.crc32_tables], ids=["instructions", "tables"])
@pytest.mark.parametrize("start", [0, 1, 7, 15])
def test_equals_zlib_at_every_length(crc32, start):
    for n in [*range(300), 4095, 4096, 65537, len(DATA) - 15]:
        data = DATA[start : start + n]
        assert crc32(data) == zlib.crc32(data), n


@pytest.mark.parametrize("crc32", [core.crc32, core.crc32_tables], ids=["instructions", "tables"])
@pytest.mark.parametrize("cut", [0, 1, 15, 16, 63, 64, 65, 127, 128, 1000])
def test_continues_a_prefix(crc32, cut):
    assert crc32(DATA[cut:2048], crc32(DATA[:cut])) == zlib.crc32(DATA[:2048])


def test_names_its_path():
    assert core.crc32_path() in {"arm_crc32", "pclmul", "tables"}
