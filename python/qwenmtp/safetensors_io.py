"""The safetensors container: headers checked against the file before anything is read, rows read and written by block.

The `safetensors` package and MLX write whole tensors; a table of 100 GB needs a file whose rows arrive block by block.
Refuses a header that disagrees with its file: too long, not JSON, a gap, an overlap, a size that is not shape x dtype.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwenmtp.errors import ModelFormatError

ITEM_BYTES = {"F8_E4M3": 1, "U8": 1, "BF16": 2, "F16": 2, "F32": 4, "U32": 4, "I32": 4, "I64": 8}
MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int  # bytes from the start of the file

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: the last axis, or the whole of a vector."""
        return (self.shape[-1] if self.shape else 1) * ITEM_BYTES[self.dtype]

    @property
    def n_rows(self) -> int:
        """All axes but the last, flattened."""
        return math.prod(self.shape[:-1])

    @property
    def n_bytes(self) -> int:
        return self.n_rows * self.row_bytes


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors of a file by name, and its metadata; every extent is inside the file and they tile it.

    Raises:
        ModelFormatError: the header and the file disagree.
    """
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        header_bytes = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
        if not 0 < header_bytes <= min(MAX_HEADER_BYTES, file_bytes - 8):
            raise _broken(path, f"header of {header_bytes} bytes in a file of {file_bytes}")
        text = file.read(header_bytes)
    try:
        header = json.loads(text)
    except ValueError as error:
        raise _broken(path, f"header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise _broken(path, "header is not an object of tensors")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _broken(path, "__metadata__ is not an object of strings")
    start = 8 + header_bytes
    tensors = {name: _entry(path, name, value, start) for name, value in header.items()}
    end = start
    for info in sorted(tensors.values(), key=lambda t: (t.offset, t.n_bytes)):
        if info.offset != end:
            raise _broken(path, f"{info.name} begins at byte {info.offset}, expected {end}")
        end += info.n_bytes
    if end != file_bytes:
        raise _broken(path, f"tensors end at byte {end}, the file at {file_bytes}")
    return tensors, metadata


def read_rows(info: TensorInfo, first: int, count: int) -> NDArray[np.uint8]:
    """Rows [first, first + count) as bytes [count, row_bytes].

    Raises:
        ModelFormatError: the file has become shorter than its header says.
    """
    if not 0 <= first <= first + count <= info.n_rows:
        raise IndexError(f"rows {first}..{first + count} of {info.name}, which has {info.n_rows}")
    out = np.empty((count, info.row_bytes), np.uint8)
    view = out.reshape(-1).data
    with info.path.open("rb", buffering=0) as file:
        file.seek(info.offset + first * info.row_bytes)
        while view:
            n = file.readinto(view)
            if not n:
                raise _broken(info.path, f"ends inside {info.name}")
            view = view[n:]
    return out


class FileWriter:
    """A file whose tensors are declared first and written in any order, rows at a time.

    Wide types come first in the file, so that every tensor is aligned to its own item.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
    ) -> None:
        header: dict[str, Any] = {"__metadata__": dict(metadata)}
        at, self._extent = 0, {}
        for name in sorted(tensors, key=lambda n: -ITEM_BYTES[tensors[n][0]]):
            dtype, shape = tensors[name]
            size = math.prod(shape) * ITEM_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
            self._extent[name] = (at, size)
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._start = 8 + len(text)
        self.n_bytes = self._start + at
        self._left = at
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        with self._closed_on_error():
            os.ftruncate(self._fd, self.n_bytes)
            self._put(0, struct.pack("<Q", len(text)) + text)

    def write(self, name: str, at: int, data: NDArray[Any]) -> None:
        """Put the bytes of `data` at byte `at` of a tensor; each byte of the file is to be written once."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        offset, size = self._extent[name]
        if at + len(raw) > size:
            raise IndexError(f"{len(raw)} bytes at {at} of {name}, which has {size}")
        self._put(self._start + offset + at, raw)
        self._left -= len(raw)

    def leave_zeros(self, name: str) -> None:
        """A whole tensor of zeros, written nowhere: a hole where the file system has them."""
        self._left -= self._extent[name][1]

    def close(self) -> None:
        """Make the file durable. Raises RuntimeError when a declared byte was never written."""
        with self._closed_on_error():
            if self._left:
                raise RuntimeError(f"{self._left} bytes of the file were not written")
            os.fsync(self._fd)
        os.close(self._fd)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            os.close(self._fd)

    def _put(self, at: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            n = os.pwrite(self._fd, view, at)
            view, at = view[n:], at + n

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            os.close(self._fd)
            raise


def _entry(path: Path, name: str, value: Any, start: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise _broken(path, f"{name} lacks a dtype, shape or pair of offsets")
    if dtype not in ITEM_BYTES:
        raise _broken(path, f"{name} has dtype {dtype}, expected one of {', '.join(ITEM_BYTES)}")
    info = TensorInfo(name, dtype, shape, path, start + begin)
    if end - begin != info.n_bytes:
        raise _broken(path, f"{name} {dtype} {list(shape)} spans {end - begin} bytes, expected {info.n_bytes}")
    return info


def _broken(path: Path, fact: str) -> ModelFormatError:
    return ModelFormatError(f"[safetensors.open] {path}: {fact}")
