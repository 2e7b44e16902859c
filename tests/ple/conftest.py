"""Small n-gram tables on disk, in every coding, and their values by mx.dequantize."""

from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from qwenmtp import _core


@dataclass
class SmallTable:
    """A planar table: spec for the core, records [rows, record_bytes], values as (float32, bf16 bits) by MLX."""

    spec: _core.PleTableSpec
    shards: list[_core.PleShard]
    dim: int
    format: _core.RowFormat
    paths: list[Path]
    records: np.ndarray
    float32: np.ndarray
    bfloat16: np.ndarray
    fp8_scale: float


def bits16(a: mx.array) -> np.ndarray:
    return np.array(a.view(mx.uint16))


def affine_planes(rows, dim, bits, group_size, rng):
    """Random codes with plausible scales and biases, and their values by mx.dequantize."""
    weight = rng.integers(0, 2**32, (rows, dim * bits // 32), dtype=np.uint32)
    scales = bits16(mx.array(rng.normal(size=(rows, dim // group_size)).astype(np.float32)).astype(mx.bfloat16))
    scales[:2, 0] = [0x7FFF, 0x7F80][:rows]  # a NaN whose rounding would carry into the sign, and infinity
    scales = mx.array(scales).view(mx.bfloat16)
    biases = mx.array(rng.normal(size=(rows, dim // group_size)).astype(np.float32) * 4).astype(mx.bfloat16)
    kind = {"group_size": group_size, "bits": bits}
    with mx.stream(mx.cpu):
        wide = mx.dequantize(mx.array(weight), scales.astype(mx.float32), biases.astype(mx.float32), **kind)
        narrow = mx.dequantize(mx.array(weight), scales, biases, **kind)
        planes = [weight, bits16(scales), bits16(biases)]
        return planes, np.array(wide), bits16(narrow)


def planes_of(coding, rows, dim, bits, group_size, rng):
    if coding == "affine":
        return affine_planes(rows, dim, bits, group_size, rng)
    if coding == "fp8":
        codes = rng.integers(0, 256, (rows, dim), dtype=np.uint8)
        wide = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(FP8_SCALE)
        narrow = np.array(mx.array(wide).astype(mx.bfloat16).view(mx.uint16))
        return [codes], wide, narrow
    if coding == "f32":
        wide = rng.normal(size=(rows, dim)).astype(np.float32)
        return [wide], wide, bits16(mx.array(wide).astype(mx.bfloat16))
    values = rng.normal(size=(rows, dim)).astype(ml_dtypes.bfloat16)
    return [values.view(np.uint16)], values.astype(np.float32), values.view(np.uint16)


FP8_SCALE = 1.99317932e-4  # bf16 0x3951, the released table's


def write_planar(folder: Path, planes, shard_rows, lead):
    """One file per shard: `lead` bytes of other data, then the planes one after the other."""
    shards, paths, first = [], [], 0
    for i, n in enumerate(shard_rows):
        path = folder / f"table-{i}.bin"
        offset, parts = lead, [b"\xa5" * lead]
        specs = []
        for plane in planes:
            data = plane[first : first + n].tobytes()
            specs.append(_core.PlePlane(str(path), offset))
            parts.append(data)
            offset += len(data)
        path.write_bytes(b"".join(parts))
        shards.append(_core.PleShard(n, specs))
        paths.append(path)
        first += n
    return shards, paths


@pytest.fixture
def make_table(tmp_path):
    def make(coding="affine", bits=4, group_size=32, dim=160, shard_rows=(1000,), lead=24, seed=0, folder=None):
        rng = np.random.default_rng(seed)
        planes, wide, narrow = planes_of(coding, sum(shard_rows), dim, bits, group_size, rng)
        target = tmp_path / (folder or "table")
        target.mkdir()
        shards, paths = write_planar(target, planes, shard_rows, lead)
        kind = {"affine": {"bits": bits, "group_size": group_size}, "fp8": {"fp8_scale": FP8_SCALE}}.get(coding, {})
        row_format = _core.RowFormat(dim=dim, coding=getattr(_core.Coding, coding), **kind)
        raw = [np.ascontiguousarray(p).view(np.uint8).reshape(len(p), -1) for p in planes]
        records = np.concatenate(raw, axis=1)
        spec = _core.PleTableSpec(row_format, shards)
        return SmallTable(spec, shards, dim, row_format, paths, records, wide, narrow, FP8_SCALE)

    return make
