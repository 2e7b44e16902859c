"""An n-gram table in FP8, as the FP8 release stores it: the values are codes times one scale."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import qwenmtp
from qwenmtp import SamplingParams
from qwenmtp.errors import ModelFormatError

from .test_weights import Copy, rewrite

SCALE = 2.0**-7  # code * scale then fits bf16, so the same table can be stored in both types


def retable(folder: Path, store: Any, scale: list[float] | None) -> None:
    """Store each table shard as `store(codes)` gives it (dtype, bytes), with its scale where there is one."""
    index_path = folder / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    rng = np.random.default_rng(0)
    for file in sorted({folder / name for name in index["weight_map"].values()}):

        def change(header: dict[str, Any], payload: bytes, file: Path = file) -> bytes:
            parts, at = [], 0
            entries = sorted(header.items(), key=lambda item: item[1].get("data_offsets", [0])[0])
            for name, entry in entries:
                if "data_offsets" not in entry:
                    continue
                begin, end = entry["data_offsets"]
                data = payload[begin:end]
                if ".ngram_embedding.shard_" in name:
                    codes = rng.integers(0, 0x7F, entry["shape"], dtype=np.uint8)  # no NaN
                    entry["dtype"], data = store(codes)
                entry["data_offsets"] = [at, at + len(data)]
                parts.append(data)
                at += len(data)
            stems = {n.split(".shard_")[0] for n in header if ".ngram_embedding.shard_" in n}
            for stem in stems if scale is not None else ():
                data = np.array(scale, ml_dtypes.bfloat16).tobytes()
                name = f"{stem}.weight_scale"
                header[name] = {"dtype": "BF16", "shape": [len(scale)], "data_offsets": [at, at + len(data)]}
                index["weight_map"][name] = file.name
                parts.append(data)
                at += len(data)
            return b"".join(parts)

        rewrite(file, change)
    index_path.write_text(json.dumps(index))


def as_fp8(codes: np.ndarray) -> tuple[str, bytes]:
    return "F8_E4M3", codes.tobytes()


def as_bf16(codes: np.ndarray) -> tuple[str, bytes]:
    wide = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * SCALE
    return "BF16", wide.astype(ml_dtypes.bfloat16).tobytes()


@pytest.mark.parametrize("residency", ["ssd", "resident"])
def test_an_fp8_table_equals_the_same_values_in_bf16(checkpoint: Copy, residency: str) -> None:
    states = []
    for name, store, scale in (("fp8", as_fp8, [SCALE]), ("bf16", as_bf16, None)):
        folder = checkpoint("small")
        folder = folder.rename(folder.with_name(name))
        retable(folder, store, scale)
        with qwenmtp.load(folder, dtype="float32", ple_residency=residency) as model:
            session = model.session(mode="ar")
            list(session.generate([5, 3, 8, 1], SamplingParams(temperature=0.0), max_tokens=12))
            states.append((session.ids, session._timeline.whole()))
    assert states[0][0] == states[1][0]
    assert states[0][1].first_difference(states[1][1]) is None


@pytest.mark.parametrize(("scale", "fact"), [(None, "weight_scale: missing"), ([SCALE, SCALE], "expected one value")])
def test_a_scale_that_is_no_single_number_is_refused(checkpoint: Copy, scale: Any, fact: str) -> None:
    folder = checkpoint("small")
    retable(folder, as_fp8, scale)
    with pytest.raises(ModelFormatError, match=fact):
        qwenmtp.load(folder, dtype="float32")
