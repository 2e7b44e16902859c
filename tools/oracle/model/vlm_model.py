"""mlx-vlm's qwen4_exp on the CPU: convert a released checkpoint with its own tools, run ids through the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_vlm.quant_utils import quantize_model
from mlx_vlm.speculative.drafters.mtp_split import detect_mtp_splitter
from mlx_vlm.utils import load_model, save_config, save_weights, skip_multimodal_module

mx.set_default_device(mx.cpu)


def convert(source: Path, out: Path, bits: int, group: int) -> None:
    """OUT becomes the body, OUT/mtp the draft head, a model of its own."""
    model, config = load_model(source), json.loads((source / "config.json").read_text())
    own = model.quant_predicate

    def rule(path: str, module: Any) -> Any:
        return False if skip_multimodal_module(path) else own(path, module)

    model, config = quantize_model(model, config, group, bits, mode="affine", quant_predicate=rule)
    save_weights(out, model, donate_weights=True)
    save_config(config, config_path=out / "config.json")
    detect_mtp_splitter(source).split(str(source), str(out / "mtp"), q_bits=bits, q_group_size=group, q_mode="affine")


def load(path: Path) -> Any:
    """In float32."""
    model = load_model(path)
    model.update(
        tree_map(lambda a: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a, model.parameters())
    )
    return model


def logits(model: Any, ids: list[int]) -> np.ndarray:
    out = model.language_model(mx.array([ids]), cache=model.language_model.make_cache())
    return np.array(out.logits[0].astype(mx.float32))
