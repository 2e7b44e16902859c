"""MTPLX's qwen4_exp on the CPU: load a checkpoint or a pack, run ids, dump what reference.py dumps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mtplx.expert_layout import split_fused_experts
from mtplx.models import qwen4_exp as q

EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
_gather_mm = mx.gather_mm


def wide_gather_mm(a: mx.array, b: mx.array, *rest: Any, **named: Any) -> mx.array:
    """The CPU back end multiplies gathered matrices in float32 only."""
    return _gather_mm(a.astype(mx.float32), b.astype(mx.float32), *rest, **named).astype(a.dtype)


mx.gather_mm = wide_gather_mm


def cast(tree: Any, dtype: mx.Dtype) -> Any:
    return tree_map(lambda a: a.astype(dtype) if mx.issubdtype(a.dtype, mx.floating) else a, tree)


def fuse_experts(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Numbered expert matrices -> gate_up_proj [E,2I,H] and down_proj [E,H,I]; MTPLX does this for the trunk alone."""
    out: dict[str, mx.array] = {}
    found: dict[str, dict[tuple[str, int], mx.array]] = {}
    for name, value in tensors.items():
        hit = EXPERT.fullmatch(name)
        if hit:
            found.setdefault(hit[1], {})[hit[3], int(hit[2])] = value
        else:
            out[name] = value
    for base, parts in found.items():
        gate, up, down = (mx.stack([parts[p, e] for e in range(len(parts) // 3)]) for p in ("gate", "up", "down"))
        out[f"{base}.gate_up_proj"], out[f"{base}.down_proj"] = mx.concatenate([gate, up], 1), down
    return out


def attach_released_head(model: Any, tensors: dict[str, mx.array], hidden: int) -> None:
    head, parts = q.Qwen4ExpMTP(model.language_model.args), {}
    tensors = fuse_experts({k.removeprefix("mtp."): v for k, v in tensors.items() if k.startswith("mtp.")})
    for name, value in split_fused_experts(tensors, hidden_size=hidden).items():
        zero_centred = name.startswith("pre_fc_norm") or name.endswith(tuple(q.Model._HF_NORM_SHIFT_SUFFIXES))
        parts[name] = value + 1.0 if value.ndim == 1 and zero_centred else value
    head.load_weights(list(parts.items()), strict=True)
    model.language_model.mtp = head


def load_quantized(
    model: Any, path: Path, tensors: dict[str, mx.array], rules: dict[str, Any], dtype: mx.Dtype
) -> None:
    weights = model.sanitize(tensors)

    def width(name: str, module: nn.Module) -> Any:
        return rules[name] if name in rules else hasattr(module, "to_quantized") and f"{name}.scales" in weights

    nn.quantize(model, group_size=rules["group_size"], bits=rules["bits"], class_predicate=width)
    model.load_weights(list(weights.items()), strict=True)
    model.post_weight_load(path)
    model.attach_mtp(path)
    model.update(cast(model.parameters(), dtype))
    if dtype == mx.float32:  # the table's own gather rounds rows to bfloat16
        layer = next(layer for layer in model.layers if "ple" in layer)
        table = layer.ple.ple_embedding.ngram_embedding._sidecar

        def gather(flat: Any, prepared: Any = None) -> mx.array:
            rows = table._rows_matrices(flat, ("weight", "scales", "biases"))
            scales, biases = (mx.array(rows[n]).view(mx.bfloat16).astype(mx.float32) for n in ("scales", "biases"))
            return mx.dequantize(mx.array(rows["weight"]), scales, biases, group_size=table.group_size, bits=table.bits)

        table.gather_np = gather


def load(path: Path, dtype: mx.Dtype) -> Any:
    config = json.loads((path / "config.json").read_text())
    model, tensors = q.Model(q.ModelArgs.from_dict(config)), {}
    for file in sorted(path.glob("model*.safetensors")):
        tensors.update(mx.load(str(file)))
    rules = config.get("quantization")
    if rules is None:
        tensors = cast(tensors, dtype)
        model.load_weights(list(model.sanitize(dict(tensors)).items()), strict=True)
        attach_released_head(model, tensors, config["text_config"]["hidden_size"])
    else:
        load_quantized(model, path, tensors, rules, dtype)
    model.eval()
    return model


def array(a: mx.array) -> np.ndarray:
    return np.array(a.astype(mx.float32))


def state_of(model: Any, cache: Any) -> dict[str, np.ndarray]:
    out = {}
    for i, layer in enumerate(model.layers):
        if layer.is_linear:
            slots = ("conv", "delta", "pleconv", "ngram") if "ple" in layer else ("conv", "delta")
            entry = [cache[i][j] for j in range(len(slots))]
        else:
            slots, entry = ("k", "v", "raw"), cache[i].state
        for name, value in zip(slots, entry, strict=False):  # a QSA state may carry pooled keys as well
            out[f"state.{i}.{name}"] = np.array(value[0]) if name == "ngram" else array(value[0])
    return out


def run(model: Any, ids: list[int], chunks: list[int]) -> dict[str, np.ndarray]:
    """Cached forwards over the chunks, then the draft head on their wide rows and a chain of depth 3."""
    x, cache, logits, wide, at = mx.array([ids]), model.make_cache(), [], [], 0
    for n in chunks:
        rows, stream = model(x[:, at : at + n], cache=cache, return_hidden=True)
        mx.eval(rows, stream)
        logits.append(rows)
        wide.append(stream)
        at += n
    rows, stream = mx.concatenate(logits, 1), mx.concatenate(wide, 1)
    out = {"logits": array(rows[0]), "hyper": array(stream[0]), **state_of(model, cache)}
    mtp = model.make_mtp_cache()
    if len(ids) > 1:
        drafts, head = model.mtp_forward(stream[:, :-1], x[:, 1:], mtp_cache=mtp, return_hidden=True)
        out["mtp.logits"], out["mtp.hyper"] = array(drafts[0]), array(head[0])
        for name, value in zip(("k", "v", "raw"), mtp[0].state, strict=False):
            out[f"mtp.{name}"] = array(value[0])
    feed, token, chain = stream[:, -1:], mx.argmax(rows[:, -1:], -1), []
    for _ in range(3):
        drafts, feed = model.mtp_forward(feed, token, mtp_cache=mtp, return_hidden=True)
        token = mx.argmax(drafts, -1)
        chain.append((int(token.item()), array(drafts[0, -1])))
    out["mtp.chain"], out["mtp.chain_logits"] = np.array([t for t, _ in chain]), np.stack([row for _, row in chain])
    return out
