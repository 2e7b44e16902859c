"""Tensors that leave the core: named, as numpy, with their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a state.

    Attributes:
        array: Its values, read-only; bfloat16 as ml_dtypes has it, or as uint16 where that package is missing.
        dtype: `float32`, `bfloat16` or `int64`.
        sha256: Of its bytes, row after row, little-endian.
    """

    array: np.ndarray[Any, Any]
    dtype: str
    sha256: str


def as_tensors(rows: Iterable[tuple[str, str, Sequence[int], bytes]]) -> dict[str, Tensor]:
    """(name, dtype, shape, bytes) as the core gives them, by name."""
    return {
        name: Tensor(np.frombuffer(data, _numpy(dtype)).reshape(shape), dtype, hashlib.sha256(data).hexdigest())
        for name, dtype, shape, data in rows
    }


def _numpy(dtype: str) -> Any:
    if dtype != "bfloat16":
        return dtype
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return np.uint16
    return bfloat16
