"""Rows of planar tables equal mx.dequantize bit for bit; damaged or foreign files are refused."""

import ml_dtypes
import numpy as np
import pytest

from qwenmtp import _core
from qwenmtp.errors import InvalidRequest, IoError, ModelFormatError, PleReadError

CODINGS = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64)]
CODINGS += [("bf16", 0, 0), ("f32", 0, 0), ("fp8", 0, 0)]


def assert_same_bits(got, expected):
    """Equal bits, except that any NaN equals any NaN in float32."""
    assert got.dtype == expected.dtype
    if got.dtype == np.float32:
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(got), nan)
        np.testing.assert_array_equal(got[~nan].view(np.uint32), expected[~nan].view(np.uint32))
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("coding", "bits", "group_size"), CODINGS, ids=str)
def test_every_coding_equals_mlx(make_table, coding, bits, group_size):
    table = make_table(coding, bits, group_size, dim=320, shard_rows=(7, 400, 1))
    opened = _core.PleTable.open(table.spec)
    assert opened.rows == 408
    assert opened.bytes == table.records.nbytes
    rows = np.random.default_rng(3).integers(0, 408, 600)
    assert_same_bits(opened.gather(rows, _core.RowType.float32), table.float32[rows])
    assert_same_bits(opened.gather(rows, _core.RowType.bfloat16), table.bfloat16[rows])


@pytest.mark.parametrize(("coding", "bits", "group_size"), CODINGS, ids=str)
def test_fused_rows_are_rounded_once(make_table, coding, bits, group_size):
    table = make_table(coding, bits, group_size, dim=320)
    rows = np.arange(1000)
    got = _core.PleTable.open(table.spec).gather(rows, _core.RowType.bfloat16_fused)
    once = table.float32.astype(ml_dtypes.bfloat16).view(np.uint16)
    once[np.isnan(table.float32)] = 0x7FC0
    assert_same_bits(got, once)


def test_every_fp8_code_has_its_value(make_table):
    table = make_table("fp8", dim=256)
    codes = np.unique(table.records)
    assert len(codes) == 256
    assert_same_bits(_core.PleTable.open(table.spec).gather(np.arange(1000), _core.RowType.float32), table.float32)


def test_rows_of_all_shards_in_any_order(make_table):
    table = make_table(shard_rows=(3, 1, 250, 46), lead=13)
    opened = _core.PleTable.open(table.spec)
    rows = np.array([299, 0, 254, 3, 4, 253, 2, 3, 299, 254])
    assert_same_bits(opened.gather(rows, _core.RowType.float32), table.float32[rows])


@pytest.mark.parametrize("row", [-1, 1000])
def test_a_row_outside_the_table_is_refused(make_table, row):
    opened = _core.PleTable.open(make_table().spec)
    with pytest.raises(InvalidRequest, match=f"row {row}"):
        opened.gather(np.array([0, row]), _core.RowType.float32)


def test_a_file_that_ends_early_is_refused_at_open(make_table):
    table = make_table()
    path = table.paths[0]
    _core.PleTable.open(table.spec)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelFormatError, match="1000 rows of 10"):
        _core.PleTable.open(table.spec)


def test_an_array_that_begins_behind_the_file_is_refused(make_table):
    table = make_table()
    plane = _core.PlePlane(str(table.paths[0]), table.paths[0].stat().st_size + 1)
    with pytest.raises(ModelFormatError, match="from byte"):
        _core.PleTable.open(_core.PleTableSpec(table.format, [_core.PleShard(1, [plane] * 3)]))


def test_a_missing_file_is_refused_at_open(make_table):
    table = make_table()
    table.paths[0].unlink()
    with pytest.raises(IoError, match="No such file"):
        _core.PleTable.open(table.spec)


def test_a_folder_is_not_a_table(make_table, tmp_path):
    spec = _core.PleTableSpec(make_table().format, [_core.PleShard(1, [_core.PlePlane(str(tmp_path), 0)] * 3)])
    with pytest.raises(IoError, match="regular file"):
        _core.PleTable.open(spec)


def test_a_file_truncated_in_use_is_a_typed_error(make_table):
    """The reference mapped the table and died of SIGBUS (ple_faults.json, truncated_while_mapped)."""
    table = make_table()
    opened = _core.PleTable.open(table.spec)
    with table.paths[0].open("r+b") as f:
        f.truncate(24 + 500 * 80)
    with pytest.raises(PleReadError, match="end of file"):
        opened.gather(np.array([3]), _core.RowType.float32)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"bits": 7}, "7 bits"),
        ({"bits": 1}, "1 bits"),
        ({"bits": 9}, "9 bits"),
        ({"group_size": 0}, "group size 0"),
        ({"group_size": 64}, "group size 64"),
        ({"group_size": 20}, "group size 20"),
        ({"dim": 0}, "dim 0"),
        ({"dim": 2**21}, "dim"),
        ({"coding": _core.Coding.fp8, "fp8_scale": float("inf")}, "fp8 scale"),
    ],
    ids=str,
)
def test_a_geometry_that_no_table_has_is_refused(make_table, change, fact):
    fields = {"dim": 160, "coding": _core.Coding.affine, "bits": 4, "group_size": 32} | change
    with pytest.raises(ModelFormatError, match=fact):
        _core.PleTable.open(_core.PleTableSpec(_core.RowFormat(**fields), []))


@pytest.mark.parametrize(("rows", "n_planes"), [(0, 3), (5, 1), (5, 2)])
def test_a_shard_without_its_arrays_is_refused(make_table, rows, n_planes):
    table = make_table()
    plane = _core.PlePlane(str(table.paths[0]), 0)
    with pytest.raises(ModelFormatError, match="shard"):
        _core.PleTable.open(_core.PleTableSpec(table.format, [_core.PleShard(rows, [plane] * n_planes)]))
    with pytest.raises(ModelFormatError, match="no shards"):
        _core.PleTable.open(_core.PleTableSpec(table.format, []))
