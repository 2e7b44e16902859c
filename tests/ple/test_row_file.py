"""Interleaved row files: the same rows as their source, bound to it, whole or absent, checked on request."""

import struct
import zlib

import numpy as np
import pytest

from qwenmtp import _core
from qwenmtp.errors import IoError, ModelFormatError, PleReadError

FLOAT32 = _core.RowType.float32
CODINGS = [("affine", bits, 32) for bits in (2, 3, 4, 5, 6, 8)] + [("bf16", 0, 0), ("f32", 0, 0), ("fp8", 0, 0)]


def write(table, path, step=100):
    source = _core.PleTable.open(table.spec)
    writer = _core.PleRowFileWriter(source, str(path))
    while writer.rows_done < source.rows:
        writer.step(step)
    writer.commit()
    return path


def spec(table, path, checksums=False):
    return _core.PleTableSpec(table.format, table.shards, row_file=str(path), checksums=checksums)


def naive_file(table, coding, bits, group_size):
    """The bytes of the format by its description."""
    rows, record = table.records.shape
    block = -(-(record + 4) // 4096) * 4096
    per_block = (block - 4) // record
    n_blocks = -(-rows // per_block)
    number = ["bf16", "affine", "fp8", "f32"].index(coding)
    scale = np.float32(table.fp8_scale if coding == "fp8" else 1.0)
    header = b"QWMROWS1" + struct.pack(
        "<IIIIfIII", number, table.dim, bits, group_size, scale, record, per_block, block
    )
    header += struct.pack("<QQ", rows, 4096 + n_blocks * block)
    header = header.ljust(4092, b"\0")
    out = [header, struct.pack("<I", zlib.crc32(header))]
    for b in range(n_blocks):
        payload = table.records[b * per_block : (b + 1) * per_block].tobytes().ljust(block - 4, b"\0")
        out += [payload, struct.pack("<I", zlib.crc32(struct.pack("<Q", b) + payload))]
    return b"".join(out)


@pytest.mark.parametrize(("coding", "bits", "group_size"), CODINGS, ids=str)
@pytest.mark.parametrize("checksums", [False, True])
def test_every_coding_equals_its_source(make_table, tmp_path, coding, bits, group_size, checksums):
    table = make_table(coding, bits, group_size, dim=320, shard_rows=(7, 400, 1))
    path = write(table, tmp_path / "rows")
    assert path.read_bytes() == naive_file(table, coding, bits, group_size)
    opened = _core.PleTable.open(spec(table, path, checksums))
    rows = np.random.default_rng(3).integers(0, 408, 600)
    for kind, values in ((FLOAT32, table.float32), (_core.RowType.bfloat16, table.bfloat16)):
        np.testing.assert_array_equal(opened.gather(rows, kind), values[rows])
    assert _core.ple_first_difference(opened, _core.PleTable.open(table.spec), 0, 408) == -1


def test_a_record_wider_than_a_page(make_table, tmp_path):
    table = make_table("f32", dim=1600, shard_rows=(30,))
    path = write(table, tmp_path / "rows", step=1)
    assert path.read_bytes() == naive_file(table, "f32", 0, 0)
    opened = _core.PleTable.open(spec(table, path, checksums=True))
    np.testing.assert_array_equal(opened.gather(np.arange(30), FLOAT32), table.float32)


@pytest.mark.parametrize("n_rows", [1, 39, 40, 41, 400, 401])
@pytest.mark.parametrize("step", [1, 40, 130, 10_000])
def test_any_step_writes_the_same_bytes(make_table, tmp_path, n_rows, step):
    table = make_table(shard_rows=(n_rows,))
    assert write(table, tmp_path / "rows", step).read_bytes() == naive_file(table, "affine", 4, 32)


def test_one_read_brings_a_row(make_table, tmp_path):
    table = make_table(shard_rows=(100_000,))
    path = write(table, tmp_path / "rows", step=10_000)
    config = _core.NgramConfig(
        vocab=50, ngram_size=3, heads_per_ngram=1, multipliers=[1, 3, 5], sizes=[40_000] * 2, offsets=[0, 40_000], eos=7
    )
    ids, past = np.array([3], np.int32), np.array([49, 41])
    for form, calls in ((spec(table, path), 2), (table.spec, 6)):
        stager = _core.PleStager(config, form, n_threads=0, hot_bytes=0)
        stager.embed(ids, past, FLOAT32)
        assert stager.stats()["read_calls"] == calls


def test_an_unfinished_file_never_appears(make_table, tmp_path):
    table = make_table()
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "rows").write_bytes(b"old")
    writer = _core.PleRowFileWriter(_core.PleTable.open(table.spec), str(folder / "rows"))
    writer.step(100)
    with pytest.raises(Exception, match="expected 1000"):
        writer.commit()
    del writer
    assert [p.name for p in folder.iterdir()] == ["rows"]
    assert (folder / "rows").read_bytes() == b"old"
    write(table, folder / "rows")
    assert [p.name for p in folder.iterdir()] == ["rows"]


def test_a_folder_that_is_not_there_is_refused(make_table, tmp_path):
    with pytest.raises(IoError, match="expected a folder"):
        write(make_table(), tmp_path / "nowhere" / "rows")


def test_the_row_file_of_another_model_is_refused(make_table, tmp_path):
    mine, other = make_table(seed=0, folder="mine"), make_table(seed=1, folder="other")
    path = write(other, tmp_path / "rows")
    with pytest.raises(ModelFormatError, match=r"row 0 differs"):
        _core.PleTable.open(spec(mine, path))


@pytest.mark.parametrize("row", [0, 999])
def test_the_sample_has_the_first_and_the_last_row(make_table, tmp_path, row):
    table = make_table()
    path = write(table, tmp_path / "rows")
    at = 4096 + row // 40 * 4096 + row % 40 * 100
    damage(path, at)
    with pytest.raises(ModelFormatError, match=f"row {row} differs"):
        _core.PleTable.open(spec(table, path))


def damage(path, at):
    with path.open("r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("at", [0, 8, 12, 20, 24, 28, 40, 50, 2000, 4095])
def test_a_damaged_header_is_refused(make_table, tmp_path, at):
    table = make_table()
    path = write(table, tmp_path / "rows")
    damage(path, at)
    with pytest.raises(ModelFormatError, match="header"):
        _core.PleTable.open(spec(table, path))


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_refused(make_table, tmp_path, change):
    table = make_table()
    path = write(table, tmp_path / "rows")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if change < 0 else whole + b"\0")
    with pytest.raises(ModelFormatError, match="bytes, expected"):
        _core.PleTable.open(spec(table, path))


@pytest.mark.parametrize("where", ["record", "padding", "checksum"])
def test_a_flipped_byte_is_found_on_first_touch(make_table, tmp_path, where):
    """ple_faults.json, flipped_row_load: the reference loads and serves a damaged row."""
    table = make_table(shard_rows=(40_000,))  # of the sample, rows 0 and 156 lie near
    path = write(table, tmp_path / "rows", step=40_000)
    damage(path, 4096 * 3 + {"record": 1717, "padding": 4050, "checksum": 4093}[where])
    opened = _core.PleTable.open(spec(table, path, checksums=True))
    good = np.arange(0, 80)
    np.testing.assert_array_equal(opened.gather(good, FLOAT32), table.float32[good])
    for _ in range(2):
        with pytest.raises(PleReadError, match="block 2 has checksum"):
            opened.gather(np.array([119]), FLOAT32)
    unchecked = _core.PleTable.open(spec(table, path))
    served = unchecked.gather(np.array([97]), FLOAT32)
    assert (served != table.float32[97]).any() == (where == "record")


def test_blocks_that_changed_places_are_found(make_table, tmp_path):
    table = make_table(shard_rows=(40_000,))
    path = write(table, tmp_path / "rows", step=40_000)
    data = bytearray(path.read_bytes())
    one, two = slice(4096 * 5, 4096 * 6), slice(4096 * 6, 4096 * 7)
    data[one], data[two] = data[two], data[one]
    path.write_bytes(data)
    opened = _core.PleTable.open(spec(table, path, checksums=True))
    for row in (165, 205):
        with pytest.raises(PleReadError, match="checksum"):
            opened.gather(np.array([row]), FLOAT32)


def test_the_first_difference_is_named(make_table, tmp_path):
    table = make_table()
    path = write(table, tmp_path / "rows")
    damage(path, 4096 + 5 * 4096 + 17 * 100 + 99)
    rows = _core.PleTable.open(spec(table, path))
    source = _core.PleTable.open(table.spec)
    assert _core.ple_first_difference(rows, source, 0, 1000) == 217
    assert _core.ple_first_difference(rows, source, 218, 782) == -1
