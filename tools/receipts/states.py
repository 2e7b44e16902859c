"""What a receipt says about a state, and how two such states are compared. Needs NumPy only; both engines use it.

A tensor is described by dtype, shape, the SHA-256 of its bytes, and a sketch: its root mean square and four sums over
all values with random signs, each divided by the square root of their number. One engine's tensors are compared by
hash. Across engines, whose sums round differently, no signed sum may differ by more than a share of the root mean
square: rounding noise of relative size e moves a sum by about e, a value misplaced among n by 1 / sqrt(n).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

Row = dict[str, Any]

PROMPTS = (([9707, 11, 1075], [1075]), ([699, 579, 207], [681]))  # prompt, suffix: the seed's, and a small vocabulary's
TEMPERATURES = (0.6, 1.0)
TOKENS = 8
DEPTHS, MTP_TEMPERATURES, LIMITS = (1, 2, 3), (0.0, 0.6), (1, 2, 5, 9)
TOP_P, TOP_K, SEED = 0.95, 20, 0
CANCEL_AFTER = 3
FLAG = "MTPLX_AR_PIPELINE"  # obsolete: must change nothing

# Share of the root mean square; float32: two frameworks' summation orders through 8 to 48 layers.
TOLERANCE = {"float32": 2e-5, "bfloat16": 6e-2}


def prompt_of(vocab: int) -> tuple[list[int], list[int]]:
    """The seed's prompt and suffix where the vocabulary holds them."""
    return next((list(p), list(s)) for p, s in PROMPTS if max(p) < vocab)


@cache
def _signs(n: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(n).choice(np.array([-1.0, 1.0]), (4, n)) / np.sqrt(n)


def describe(name: str, values: np.ndarray[Any, Any], dtype: str, data: bytes) -> Row:
    """One tensor of a receipt; values in any float type, data its bytes as stored."""
    wide = values.astype(np.float64).ravel()
    numbers = [float(np.sqrt(np.mean(wide**2))), *map(float, _signs(wide.size) @ wide)]
    return {
        "name": name,
        "dtype": dtype,
        "shape": list(values.shape),
        "sha256": hashlib.sha256(data).hexdigest(),
        "sketch": [float(f"{x:.7g}") for x in numbers],
    }


def hash_difference(want: Row, got: Row) -> str | None:
    """The first tensor of two `state` objects that is not the same bytes."""
    return _first(want, got, lambda a, b: a["sha256"] == b["sha256"])


def value_difference(want: Row, got: Row) -> tuple[str | None, float]:
    """The first tensor that differs by more than rounding, and the largest difference, as a share of the tolerance."""
    worst = 0.0

    def close(a: Row, b: Row) -> bool:
        nonlocal worst
        if a["dtype"] == "int64":
            return bool(a["sha256"] == b["sha256"])
        size, apart = a["sketch"][0], np.abs(np.subtract(a["sketch"], b["sketch"])).max()
        share = float(apart / (TOLERANCE[a["dtype"]] * size)) if size else float(apart > 0)
        worst = max(worst, share)
        return share <= 1.0

    return _first(want, got, close), worst


def _first(want: Row, got: Row, same: Any) -> str | None:
    if (want["N"], want["H"]) != (got["N"], got["H"]):
        return f"N {got['N']}, H {got['H']}, expected {want['N']}, {want['H']}"
    theirs: Mapping[str, Row] = {t["name"]: t for t in got["tensors"]}
    for tensor in want["tensors"]:
        other = theirs.get(tensor["name"])
        if other is None:
            return f"{tensor['name']}: missing"
        if (tensor["shape"], tensor["dtype"]) != (other["shape"], other["dtype"]):
            return f"{tensor['name']}: {other['dtype']} {other['shape']}, expected {tensor['dtype']} {tensor['shape']}"
        if not same(tensor, other):
            return f"{tensor['name']}: other values"
    return None
