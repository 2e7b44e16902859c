"""convert: a damaged release is named, and nothing is written."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from convert.release import PLE, SHARD, arrays, config_of, edit_header, names, write_release

from qwenmtp.convert import convert
from qwenmtp.errors import ModelFormatError
from qwenmtp.safetensors_io import FileWriter, read_header, read_rows


def damage(kind: str, folder: Path) -> None:
    shard, config = folder / SHARD, config_of(folder)
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    if kind == "no folder":
        shutil.rmtree(folder)
    elif kind == "no config":
        (folder / "config.json").unlink()
    elif kind == "config is not JSON":
        (folder / "config.json").write_text("{")
    elif kind == "config is a list":
        (folder / "config.json").write_text("[]")
    elif kind == "other model":
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen3"}))
    elif kind == "no text_config":
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen4_exp"}))
    elif kind == "no hidden_size":
        del config["text_config"]["hidden_size"]
        (folder / "config.json").write_text(json.dumps(config))
    elif kind == "layer type":
        config["text_config"]["layer_types"][0] = "sliding_attention"
        (folder / "config.json").write_text(json.dumps(config))
    elif kind == "no index":
        index.unlink()
    elif kind == "index of numbers":
        index.write_text('{"weight_map": {"lm_head.weight": [1]}}')
    elif kind == "shard of another folder":
        shutil.copy(shard, folder.parent / "x")
        index.write_text(json.dumps({"weight_map": {**listed["weight_map"], "lm_head.weight": "../x"}}))
    elif kind == "shard not on disk":
        shard.unlink()
    elif kind == "shard not in the index":
        listed["weight_map"] = {n: f for n, f in listed["weight_map"].items() if f != SHARD}
        index.write_text(json.dumps(listed))
    elif kind == "tensor not in its shard":
        listed["weight_map"]["model.visual.x"] = SHARD
        index.write_text(json.dumps(listed))
    elif kind == "tensor in another shard":
        listed["weight_map"]["lm_head.weight"] = SHARD.replace("1-of", "2-of")
        index.write_text(json.dumps(listed))
    elif kind == "truncated":
        os.truncate(shard, shard.stat().st_size - 1)
    elif kind == "longer":
        with shard.open("ab") as file:
            file.write(b"\0")
    elif kind == "header length":
        shard.write_bytes((1 << 60).to_bytes(8, "little") + shard.read_bytes()[8:])
    elif kind == "header beyond the file":
        shard.write_bytes((50_000_000).to_bytes(8, "little") + shard.read_bytes()[8:])
    elif kind == "empty shard":
        shard.write_bytes(b"")
    elif kind == "header":
        data = bytearray(shard.read_bytes())
        data[8] ^= 1
        shard.write_bytes(data)
    elif kind == "overlap":
        last = max(read_header(shard)[0].values(), key=lambda t: t.offset)
        edit_header(shard, lambda h: h[last.name].update(data_offsets=[0, last.n_bytes]))
    elif kind == "extent":
        edit_header(shard, lambda h: h["lm_head.weight"].update(shape=[320, 129]))
    elif kind == "shape":
        edit_header(shard, lambda h: h["lm_head.weight"].update(shape=[128, 320]))
    elif kind == "dtype":
        edit_header(shard, lambda h: h["lm_head.weight"].update(dtype="F4"))
    elif kind == "half precision":
        edit_header(shard, lambda h: h["lm_head.weight"].update(dtype="F16"))
    elif kind == "unknown tensor":
        rename(folder, lambda n: n.replace("lm_head.weight", "lm_head.bias"))
    else:
        rename(folder, lambda n: {"pack": "language_model.", "unknown layout": "transformer."}[kind] + n)


def rename(folder: Path, change: Callable[[str], str]) -> None:
    """Renames every tensor in the files and in the index."""
    for path in folder.glob("*.safetensors"):
        edit_header(path, lambda h: [h.update({change(n): h.pop(n)}) for n in list(h) if n != "__metadata__"])
    names = {n: p.name for p in folder.glob("*.safetensors") for n in read_header(p)[0]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


BAD = {
    "no folder": r"config\.json is missing",
    "no config": r"config\.json is missing",
    "config is not JSON": "cannot be read as JSON",
    "config is a list": "holds no JSON object",
    "other model": "model_type is 'qwen3', expected 'qwen4_exp'",
    "no text_config": "text_config is missing",
    "no hidden_size": "hidden_size is missing",
    "layer type": "'sliding_attention'",
    "no index": r"index\.json is missing",
    "index of numbers": "no weight_map of file names",
    "shard of another folder": r"shard \.\./x of .* is no file of this folder",
    "shard not on disk": f"shard {SHARD} of .* is no file of this folder",
    "shard not in the index": f"shard {SHARD} is missing from",
    "tensor not in its shard": r"places model\.visual\.x in",
    "tensor in another shard": r"lm_head\.weight is in",
    "truncated": "tensors end at byte",
    "longer": "tensors end at byte",
    "header length": "header of 1152921504606846976 bytes",
    "header beyond the file": "header of 50000000 bytes",
    "empty shard": "header of -1 bytes",
    "header": "not JSON",
    "overlap": "begins at byte",
    "extent": r"lm_head\.weight BF16 \[320, 129\] spans 81920 bytes, expected 82560",
    "shape": r"lm_head\.weight is BF16 \[128, 320\], expected .* \[320, 128\]",
    "dtype": "dtype F4",
    "half precision": r"lm_head\.weight is F16 \[320, 128\], expected BF16 or F32",
    "unknown tensor": r"lm_head\.weight is missing",
    "pack": "already converted",
    "unknown layout": "unknown layout",
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_named_and_leaves_nothing(kind: str, copy: Path, tmp_path: Path) -> None:
    damage(kind, copy)
    with pytest.raises(ModelFormatError, match=BAD[kind]):
        convert(copy, tmp_path / "pack", "optimized-speed")
    assert set(names(tmp_path)) <= {"release", "x"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("mtp.fc_hidden.weight"), r"mtp\.fc_hidden\.weight is missing"),
        (lambda p: p.update({"mtp.extra": p["lm_head.weight"]}), r"unknown tensor mtp\.extra"),
        (lambda p: p.pop(f"{PLE}ngram_embedding.shard_1.weight"), "n-gram table of 1 shards"),
        (
            lambda p: p.update({f"{PLE}ngram_embedding.shard_1.weight": p["lm_head.weight"][0, 0]}),
            r"shard_1\.weight is",
        ),
        (
            lambda p: p.update({"lm_head.weight": p["lm_head.weight"] * np.inf}),
            r"lm_head\.weight holds a value that is",
        ),
        (
            lambda p: p.update({"lm_head.weight": p["lm_head.weight"].astype(ml_dtypes.float8_e4m3fn)}),
            r"its scale lm_head\.weight_scale_inv is missing",
        ),
    ],
)
def test_a_wrong_set_of_tensors_is_named(change: Any, message: str, tiny: Path, tmp_path: Path) -> None:
    parts = arrays(tiny)
    change(parts)
    write_release(tmp_path / "release", config_of(tiny), parts)
    with pytest.raises(ModelFormatError, match=message):
        convert(tmp_path / "release", tmp_path / "pack", "optimized-speed")
    assert names(tmp_path) == ["release"]


def test_a_flipped_header_bit_never_escapes_as_another_error(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    shapes = {"a.weight": ("U32", (3, 4)), "a.scales": ("BF16", (3, 1)), "b": ("I64", (2,))}
    with FileWriter(path, shapes, {"format": "mlx"}) as file:
        for info in read_header(path)[0].values():
            file.write(info.name, 0, np.zeros(info.n_bytes, np.uint8))
    data = path.read_bytes()
    survived = 0
    for bit in range(8 * (8 + int.from_bytes(data[:8], "little"))):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = read_header(path)[0]
        except ModelFormatError:
            continue
        # Names, metadata, and shapes or types of the same size: what the checks by name are for.
        survived += 1
        assert sum(t.n_bytes for t in found.values()) == 3 * 4 * 4 + 3 * 2 + 2 * 8
    assert survived < 300


def test_rows_of_a_file_that_shrank_are_refused(tiny: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(tiny / SHARD, tmp_path / SHARD))
    info = max(read_header(path)[0].values(), key=lambda t: t.offset)
    os.truncate(path, info.offset + info.n_bytes - 1)
    with pytest.raises(ModelFormatError, match=f"ends inside {info.name}"):
        read_rows(info, 0, info.n_rows)
