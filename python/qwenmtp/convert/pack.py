"""Writes a pack: which tensor goes to which file in which width, block by block, and the whole folder at once or not.

Memory holds one block of rows, whatever the size of a tensor. Refuses an existing destination and values that are not
finite.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from qwenmtp.convert.recipe import Recipe, Width, load_recipe
from qwenmtp.convert.released import Module, Released
from qwenmtp.errors import InvalidRequest, IoError, ModelFormatError
from qwenmtp.safetensors_io import ITEM_BYTES, FileWriter
from qwenmtp.weights import INDEX

MTP_FILE = "mtp.safetensors"
TABLE_FILE = "ngram-table.safetensors"
SHARD_BYTES = 4 << 30
BLOCK_VALUES = 1 << 22  # rows of about this many values are in memory at a time
COPIED = ("tokenizer*", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*",
          "generation_config.json", "*preprocessor_config.json", "LICENSE*", "NOTICE*")  # fmt: skip

Progress = Callable[[int, int, str], None]
Fill = Callable[["Planned", FileWriter], Iterator[int]]


@dataclass(frozen=True)
class ClassReport:
    """One class of the recipe, or `structural`, in one width."""

    cls: str
    width: str  # bits/group, or the dense type
    modules: int
    values: int
    bytes: int


@dataclass(frozen=True)
class ConvertReport:
    """What a conversion wrote: widths and bytes by class, files, and where a recipe could not be followed."""

    source: str
    destination: str
    recipe: dict[str, Any]
    classes: list[ClassReport]
    files: dict[str, int]  # name -> bytes
    narrowed: list[str]  # modules whose rows the recipe's group does not divide, with what they got
    vision_bytes_left_out: int

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON-ready object."""
        return {**asdict(self), "bytes": self.bytes}

    def __str__(self) -> str:
        rows = [f"{'class':24}{'width':>8}{'modules':>9}{'values':>16}{'bytes':>16}"]
        rows += [f"{c.cls:24}{c.width:>8}{c.modules:9,}{c.values:16,}{c.bytes:16,}" for c in self.classes]
        rows += [f"narrowed: {line}" for line in self.narrowed]
        return "\n".join([*rows, f"{self.destination}: {len(self.files)} files, {self.bytes:,} bytes"])


@dataclass(frozen=True)
class Planned:
    """A module and the width it gets; None keeps its dense type."""

    module: Module
    width: Width | None

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name -> dtype and shape, as stored."""
        name, shape = self.module.name, self.module.shape
        if self.width is None:
            return {name: (self.module.dtype, shape)}
        lead, n_in = shape[:-1], shape[-1]
        groups = (*lead, n_in // self.width.group_size)
        stem = name.removesuffix("weight")
        return {
            name: ("U32", (*lead, n_in * self.width.bits // 32)),
            f"{stem}scales": ("BF16", groups),
            f"{stem}biases": ("BF16", groups),
        }

    @property
    def n_bytes(self) -> int:
        return sum(math.prod(shape) * ITEM_BYTES[dtype] for dtype, shape in self.tensors.values())

    @property
    def disk_bytes(self) -> int:
        """What of them is written."""
        return 0 if self.module.rows is None else self.n_bytes


def convert(
    src: str | Path, dst: str | Path, recipe: str | Path | Recipe, *, progress: Progress | None = None
) -> ConvertReport:
    """Writes an MTPLX pack of a released checkpoint.

    Args:
        src: Folder in the released layout, bf16 or FP8.
        dst: The pack's folder; must not exist. It appears complete or not at all.
        recipe: `bare-speed`, `optimized-speed`, `optimized-quality`, or a recipe file (docs/packs.md).
        progress: Called with bytes written, bytes in all and the tensor's name.

    Returns:
        What got which width, and how many bytes.

    Raises:
        ModelFormatError: src is no complete released checkpoint.
        ConfigError: the recipe is unknown or not legal.
        InvalidRequest: dst exists.
        IoError: reading or writing failed, for instance on a full disk.
    """
    src, dst, recipe = Path(src), Path(dst), load_recipe(recipe)
    with _typed_io_errors(dst):
        source = Released(src)
    return write_pack(source, dst, recipe, progress)


def write_pack(
    source: Released, dst: Path, recipe: Recipe, progress: Progress | None = None, fill: Fill | None = None
) -> ConvertReport:
    """Writes a pack of a source's modules; it appears complete or not at all.

    Args:
        source: What there is to write.
        dst: The pack's folder; must not exist.
        recipe: Widths.
        progress: As in `convert`.
        fill: Writes a module block by block and yields the bytes of each; by default its rows, quantised.

    Raises:
        InvalidRequest: dst exists.
        IoError: Writing failed.
    """
    body, mtp, table = ([plan_module(m, recipe) for m in part] for part in (source.body, source.mtp, source.table))
    shards = _cut(body)
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    names = names if len(shards) > 1 else ["model.safetensors"]
    parts = dict(zip(names, shards, strict=True))
    if mtp:
        parts[MTP_FILE] = mtp
    if table:
        parts[TABLE_FILE] = table
    every = [p for part in parts.values() for p in part]
    total = sum(p.disk_bytes for p in every)
    with _typed_io_errors(dst), _published(dst, total) as folder:
        done = 0
        for name, part in parts.items():
            metadata = _table_metadata(part[0]) if name == TABLE_FILE else {"format": "mlx"}
            tensors = {k: v for p in part for k, v in p.tensors.items()}
            with FileWriter(folder / name, tensors, metadata) as file:
                for planned in part:
                    if planned.module.rows is None:
                        for tensor in planned.tensors:
                            file.leave_zeros(tensor)
                        continue
                    for written in (fill or _write)(planned, file):
                        done += written
                        if progress:
                            progress(done, total, planned.module.name)
        _write_json(folder / INDEX, _index({n: parts[n] for n in names}))
        _write_json(folder / "config.json", _config(source, recipe, every))
        for path in sorted({p for pattern in COPIED for p in source.folder.glob(pattern) if p.is_file()}):
            _write_file(folder / path.name, path.read_bytes())
        files = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
    narrowed = [line for p in every for line in _narrowed(p, recipe)]
    vision = sum(t.n_bytes for t in source.vision)
    return ConvertReport(str(source.folder), str(dst), recipe.to_dict(), _by_class(every), files, narrowed, vision)


def plan_module(module: Module, recipe: Recipe) -> Planned:
    """A module in the recipe's width, or the next narrower group that divides its rows."""
    asked = recipe.widths[module.cls] if module.cls else None
    return Planned(module, asked.fit(module.shape[-1]) if asked else None)


def _narrowed(planned: Planned, recipe: Recipe) -> Iterator[str]:
    module = planned.module
    asked = recipe.widths[module.cls] if module.cls else None
    if planned.width != asked:
        yield f"{module.name} rows of {module.shape[-1]} values: {planned.width or 'bf16'} instead of {asked}"


def _cut(body: list[Planned]) -> list[list[Planned]]:
    """Shards of at most SHARD_BYTES, or of one module."""
    shards, room = [[body[0]]], SHARD_BYTES - body[0].n_bytes
    for planned in body[1:]:
        if planned.n_bytes > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(planned)
        room -= planned.n_bytes
    return shards


def _write(planned: Planned, file: FileWriter) -> Iterator[int]:
    """Writes a module block by block; yields the bytes of each."""
    module, width = planned.module, planned.width
    assert module.rows is not None
    step = max(1, BLOCK_VALUES // module.shape[-1] // module.unit) * module.unit
    at = dict.fromkeys(planned.tensors, 0)
    for first in range(0, module.n_rows, step):
        with mx.stream(mx.cpu):
            block = module.rows(first, min(step, module.n_rows - first))
            if not mx.isfinite(block).all().item():
                raise ModelFormatError(f"[convert.write] {module.name} holds a value that is not finite")
            arrays = mx.quantize(block, width.group_size, width.bits) if width else (block,)
            out = [_bytes(a) for a in arrays]
        for name, data in zip(planned.tensors, out, strict=True):
            file.write(name, at[name], data)
            at[name] += data.nbytes
        yield sum(data.nbytes for data in out)


def _bytes(array: mx.array) -> NDArray[Any]:
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array, copy=False)


def _table_metadata(planned: Planned) -> dict[str, str]:
    """Strings that say how ngram.weight is packed; 0 bits mean bf16."""
    rows, dim = planned.module.shape
    width = planned.width or Width(0, 32)
    return {
        "ngram_bits": str(width.bits),
        "ngram_group_size": str(width.group_size),
        "rows": str(rows),
        "dim": str(dim),
    }


def _index(shards: dict[str, list[Planned]]) -> dict[str, Any]:
    body = [p for part in shards.values() for p in part]
    places = {tensor: name for name, part in shards.items() for p in part for tensor in p.tensors}
    return {
        "metadata": {
            "total_size": sum(p.n_bytes for p in body),
            "total_parameters": sum(math.prod(p.module.shape) for p in body),
        },
        "weight_map": dict(sorted(places.items())),
    }


def _config(source: Released, recipe: Recipe, every: list[Planned]) -> dict[str, Any]:
    """The release's config.json with what a loader of packs needs. The MTP head and the table describe themselves."""
    config = dict(source.config)
    base = recipe.base
    rules: dict[str, Any] = {"group_size": base.group_size, "bits": base.bits, "mode": "affine"}
    for p in every:
        if p.width not in (None, base) and p.module.name.startswith("language_model."):
            path = p.module.name.removesuffix(".weight")
            rules[path] = {"group_size": p.width.group_size, "bits": p.width.bits, "mode": "affine"}
    extra = {"mtp_file": MTP_FILE} if source.mtp else {}
    if source.table:
        extra["ngram_file"] = TABLE_FILE
        config["text_config"] = {**config["text_config"], "ngram_sidecar": True}
    config |= {"quantization": rules, "quantization_config": rules}
    config |= {"mlx_lm_extra_tensors": extra, "mtplx_recipe": {**recipe.to_dict(), "tool": "qwenmtp convert"}}
    return dict(sorted(config.items()))


def _by_class(every: list[Planned]) -> list[ClassReport]:
    groups: dict[tuple[str, str], list[Planned]] = {}
    for p in every:
        groups.setdefault((p.module.cls or "structural", str(p.width or p.module.dtype.lower())), []).append(p)
    return [
        ClassReport(cls, width, len(g), sum(math.prod(p.module.shape) for p in g), sum(p.n_bytes for p in g))
        for (cls, width), g in sorted(groups.items())
    ]


# ------------------------------------------------------------------ the folder
@contextmanager
def _published(dst: Path, needed: int) -> Iterator[Path]:
    """A new folder beside dst that becomes dst when the block ends well, and is removed when it does not."""
    if os.path.lexists(dst):
        raise InvalidRequest(f"[convert.publish] {dst} exists, expected the name of a new folder")
    partial = dst.with_name(f"{dst.name}.partial-{os.getpid()}")
    try:
        free = shutil.disk_usage(dst.parent).free
        if free < needed:
            raise IoError(f"[convert.publish] {dst} needs {needed:,} bytes, {free:,} are free")
        partial.mkdir()
        yield partial
        _sync(partial)
        if os.path.lexists(dst):
            raise InvalidRequest(f"[convert.publish] {dst} appeared during the conversion")
        partial.rename(dst)
        _sync(dst.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _typed_io_errors(dst: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise IoError(f"[convert.publish] {dst} was not written: {error}") from error


def _write_json(path: Path, value: dict[str, Any]) -> None:
    _write_file(path, json.dumps(value, indent=1).encode())


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
