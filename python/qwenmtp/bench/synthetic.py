"""Packs of the released geometry with random weights, for timing its shapes without its 72 GB.

Owns the geometry and the noise; `convert` writes the folder and the ordinary loader opens it. Refuses what would not
fit into this machine's memory or on the disk.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwenmtp import table
from qwenmtp.convert.pack import Planned, plan_module, write_pack
from qwenmtp.convert.recipe import BUILT_IN
from qwenmtp.convert.released import Module, Released
from qwenmtp.errors import InsufficientMemory, InvalidRequest
from qwenmtp.geometry import flat_config
from qwenmtp.plan import physical_budget
from qwenmtp.safetensors_io import FileWriter, TensorInfo
from qwenmtp.terminal import ProgressLine, human_bytes
from qwenmtp.weights import open_model_files

RECIPE = BUILT_IN["bare-speed"]  # the smallest
BLOCK_VALUES = 1 << 22

# text_config of Qwen3.8-Flash-Next, without what qwenmtp/geometry.py has as defaults.
FLASH_NEXT: dict[str, Any] = {
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "max_position_embeddings": 262144,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "ple_layer_ids": [2],
    "eos_token_id": 248044,
}
MODELS = {"flash-next": FLASH_NEXT}


@contextmanager
def synthetic_pack(args: argparse.Namespace) -> Iterator[Path]:
    """Within, the folder of the pack that `--synthetic` and `--layers` ask for: a temporary one, or one under `--dir`,
    where it stays and is used again."""
    text = MODELS[args.synthetic]
    least, most = max(text["ple_layer_ids"]), text["num_hidden_layers"]  # a pack is known by its n-gram layer
    if not least <= args.layers <= most:
        raise InvalidRequest(f"[bench.synthetic] {args.layers} layers, expected {least}..{most}")
    config = {"model_type": "qwen4_exp", "text_config": text | {"num_hidden_layers": args.layers}}
    name = f"{args.synthetic}-{args.layers}"
    if args.dir is None:
        with tempfile.TemporaryDirectory() as folder:
            yield _written(config, Path(folder) / name)
    else:
        args.dir.mkdir(parents=True, exist_ok=True)
        yield _written(config, args.dir / name)


def _written(config: dict[str, Any], folder: Path) -> Path:
    if folder.exists():
        if open_model_files(folder).geometry != flat_config(config):
            raise InvalidRequest(f"[bench.synthetic] {folder} holds another model, expected the one asked for")
        return folder
    source, budget = _Shapes(config, folder), physical_budget()
    needed = sum(plan_module(m, RECIPE).n_bytes for m in (*source.body, *source.mtp))
    if needed > budget:
        raise InsufficientMemory(
            f"[bench.synthetic] the weights need {human_bytes(needed)}, expected at most {human_bytes(budget)}: "
            "ask for fewer --layers",
            details={"weights": needed, "budget": budget},
        )
    with ProgressLine("writing") as line:
        write_pack(source, folder, RECIPE, lambda done, total, _name: line(done, total), source.noise)
    return folder


class _Shapes(Released):
    """The modules of a config, without a checkpoint behind them."""

    def __init__(self, config: dict[str, Any], folder: Path):
        self.folder, self.config, self.geometry = folder, config, flat_config(config)
        g = self.geometry
        self._hash = table.ngram_hash(
            g["ngram_vocab_base"], g["vocab_size"], g["ngram_seed"], g["ngram_size"], g["heads_per_ngram"]
        )
        self.tensors, self.vision = {}, []
        self._rng = np.random.default_rng(0)
        self._list_modules(has_mtp=True)

    def _take(self, name: str, shape: tuple[int, ...], dtype: str = "BF16") -> TensorInfo:
        return TensorInfo(name, dtype, shape, self.folder, 0)

    def _table(self, at: str, dim: int) -> Module:
        """All zeros: 32 GB of rows in the released model, of which no disk holds one."""
        divisor = self.geometry["ngram_vocab_divisor"]
        rows = -(-sum(self._hash["sizes"]) // divisor) * divisor
        return Module("ngram.weight", "table", "BF16", (rows, dim), None)

    def noise(self, planned: Planned, file: FileWriter) -> Iterator[int]:
        """Fills a module: uniform codes or normal values of variance 1 / columns, ones for vectors."""
        for name, (dtype, shape) in planned.tensors.items():
            n = math.prod(shape)
            for first in range(0, n, BLOCK_VALUES):
                data = self._values(planned, name, dtype, min(BLOCK_VALUES, n - first))
                file.write(name, first * data.itemsize, data)
                yield data.nbytes

    def _values(self, planned: Planned, name: str, dtype: str, n: int) -> NDArray[Any]:
        if dtype == "U32":
            return self._rng.integers(0, 1 << 32, n, np.uint32)
        if dtype == "I64":
            key = {"layer_multipliers": "multipliers", "ngram_heads_vocab_sizes": "sizes"}
            return np.array(self._hash[key.get(name.rsplit(".", 1)[1], "offsets")])
        if len(planned.module.shape) == 1:
            return _bf16(np.ones(n))
        deviation = planned.module.shape[-1] ** -0.5
        if planned.width is None:
            return _bf16(deviation * self._rng.standard_normal(n, np.float32))
        top = (1 << planned.width.bits) - 1
        step = deviation * math.sqrt(12 / (top * (top + 2)))
        return _bf16(np.full(n, step if name.endswith(".scales") else -step * top / 2))


def _bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
