"""A model folder as the core reads it: which file holds which tensor, in which layout. Reads headers only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenmtp.errors import ModelFormatError
from qwenmtp.geometry import flat_config
from qwenmtp.safetensors_io import TensorInfo, read_header

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class ModelFiles:
    """What `_core.Model` needs to load: nothing has been read but headers."""

    path: Path
    config: dict[str, Any]  # config.json
    geometry: dict[str, Any]  # the core's fields
    layout: str  # released, pack, vlm
    files: list[str]
    tensors: list[tuple[str, str, tuple[int, ...], int, int]]  # name, dtype, shape, index into files, byte offset
    quant: dict[str, tuple[int, int]]  # module path ("" pack-wide) -> bits, group size

    @property
    def n_bytes(self) -> int:
        """Bytes of all weight files."""
        return sum(Path(f).stat().st_size for f in self.files)


def open_model_files(path: str | Path) -> ModelFiles:
    """Describe the checkpoint in a folder.

    Raises:
        ModelFormatError: no such folder, no config.json, another model, an unknown layout, a missing shard or a
            header that disagrees with its file.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelFormatError(f"[model.open] {folder} is no folder, expected a model folder")
    config = read_json(folder / "config.json")
    geometry = flat_config(config)
    found, table_quant = _tensors(folder, config)
    files = sorted({str(t.path) for t in found.values()})
    return ModelFiles(
        path=folder,
        config=config,
        geometry=geometry,
        layout=_layout(found),
        files=files,
        tensors=[(n, t.dtype, t.shape, files.index(str(t.path)), t.offset) for n, t in found.items()],
        quant=_quantization(config) | table_quant,
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the model folder; ModelFormatError names what is wrong."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFormatError(f"[model.open] {path} is missing") from None
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"[model.open] {path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFormatError(f"[model.open] {path} holds no JSON object")
    return value


def _tensors(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, TensorInfo], dict[str, tuple[int, int]]]:
    """Every tensor of the folder by name, and the width of a side table."""
    index = folder / INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
            raise ModelFormatError(f"[model.open] {index} has no weight_map of file names")
        shards = sorted(set(weight_map.values()))
    else:
        weight_map = {}
        shards = [p.name for p in sorted(folder.glob("model*.safetensors"))]
    if not shards:
        raise ModelFormatError(f"[model.open] {folder} holds no model*.safetensors and no {INDEX}")
    found: dict[str, TensorInfo] = {}
    for shard in shards:
        found |= _header(folder, shard)[0]
    for name, shard in weight_map.items():
        if name not in found or found[name].path.name != Path(shard).name:
            raise ModelFormatError(f"[model.open] tensor {name}: missing from {shard}, where {INDEX} puts it")

    extra = config.get("mlx_lm_extra_tensors")
    extra = extra if isinstance(extra, dict) else {}
    mtp, table = str(extra.get("mtp_file", "mtp.safetensors")), str(extra.get("ngram_file", "ngram-table.safetensors"))
    if (folder / mtp).exists() and mtp not in shards:
        found |= _header(folder, mtp)[0]
    if (folder / "mtp" / "config.json").exists():  # mlx-vlm keeps the head as a model of its own
        for part in sorted((folder / "mtp").glob("*.safetensors")):
            found |= {f"mtp.{n.removeprefix('mtp.')}": t for n, t in read_header(part)[0].items()}
    quant: dict[str, tuple[int, int]] = {}
    if (folder / table).exists():
        tensors, metadata = _header(folder, table)
        found |= tensors
        try:
            bits, group = int(metadata.get("ngram_bits", "0")), int(metadata.get("ngram_group_size", "0"))
        except ValueError:
            raise ModelFormatError(
                f"[model.open] {folder / table}: ngram_bits and ngram_group_size are no numbers"
            ) from None
        quant["ngram"] = (bits, group)
    return found, quant


def _header(folder: Path, name: str) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    if Path(name).name != name:
        raise ModelFormatError(f"[model.open] shard {name!r} lies outside {folder}")
    if not (folder / name).is_file():
        raise ModelFormatError(f"[model.open] shard {folder / name} is missing")
    return read_header(folder / name)


def _layout(found: Mapping[str, TensorInfo]) -> str:
    """The container by its names; the norm convention follows from it (reference/model.md 3.3)."""
    if any(n.startswith("model.language_model.") for n in found):
        return "released"
    if any(n.startswith("language_model.") for n in found):
        if any(n.endswith(".ple.conv_weight") for n in found):
            return "pack"
        conv = [t.shape for n, t in found.items() if n.endswith(".ple.conv1d.weight")]
        if conv and all(shape[-1:] == (1,) for shape in conv):
            return "vlm"
    raise ModelFormatError(
        "[model.open] unknown layout: expected names under model.language_model. (released), or under language_model. "
        "with ple.conv_weight (MTPLX pack) or ple.conv1d.weight [channels, kernel, 1] (mlx-vlm)"
    )


def _quantization(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    rules = config.get("quantization") or config.get("quantization_config")
    if rules is None:
        return {}
    if not isinstance(rules, dict):
        raise ModelFormatError("[model.config] quantization is no object")
    out = {}
    for path, rule in {"": rules, **{k: v for k, v in rules.items() if isinstance(v, dict)}}.items():
        mode = rule.get("mode", "affine")
        bits, group = rule.get("bits"), rule.get("group_size")
        if mode != "affine" or not isinstance(bits, int) or not isinstance(group, int):
            raise ModelFormatError(
                f"[model.config] quantization of {path or 'the pack'} is {mode!r} with {bits!r} bits in groups of "
                f"{group!r}, expected affine with integers"
            )
        out[path] = (bits, group)
    return out
