"""Checkpoint files of every layout as float tensors under the released names; needs torch and safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

Tensors = dict[str, Any]
NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "hc_norm", "norm_key", "norm_query", "norm_conv")
ONE_CENTRED = tuple(f".{name}.weight" for name in NORMS)


def read_file(path: Path, prefix: str = "") -> tuple[Tensors, dict[str, str]]:
    with safe_open(str(path), framework="pt") as f:
        return {prefix + key: f.get_tensor(key) for key in f.keys()}, f.metadata() or {}


def load_checkpoint(path: Path) -> tuple[dict[str, Any], Tensors]:
    """The text configuration and the tensors; a pack is dequantised exactly."""
    config = json.loads((path / "config.json").read_text())
    tensors: Tensors = {}
    table: dict[str, str] = {}
    for file in sorted(path.glob("*.safetensors")):
        more, metadata = read_file(file)
        table = metadata if file.name == "ngram-table.safetensors" else table
        tensors |= more
    for file in sorted(path.glob("mtp/*.safetensors")):  # mlx-vlm keeps the head as a model of its own
        tensors |= read_file(file, "mtp.")[0]
    if any(name.startswith("language_model.") for name in tensors):
        dense = dequantise(config, table, tensors)
        tensors = rename(config["text_config"], dense, any(n.endswith("ple.conv_weight") for n in tensors))
    return config["text_config"], pack_experts(tensors)


def width(config: dict[str, Any], table: dict[str, str], module: str, words: int, groups: int) -> tuple[int, int]:
    """(bits, group size) of a quantised module: from the table's header, the pack's map, or the head's shapes."""
    t, rules = config["text_config"], config["quantization"]
    if module == "ngram":
        return int(table["ngram_bits"]), int(table["ngram_group_size"])
    if not module.startswith("mtp."):
        rule = rules.get(module, rules)
        return rule["bits"], rule["group_size"]
    leaf, wide = module.rsplit(".", 1)[1], t["hc_count"] * t["hidden_size"]
    columns = {
        "o_proj": t["num_attention_heads"] * t["head_dim"],
        "input_mix_weight_down": wide,
        "input_mix_weight_up": t["hc_lowrank"],
        "block_inject_weight": wide,
        "down_proj": t["moe_intermediate_size" if "switch_mlp" in module else "shared_expert_intermediate_size"],
    }.get(leaf, t["hidden_size"])
    return words * 32 // columns, columns // groups


def dequantise(config: dict[str, Any], table: dict[str, str], tensors: Tensors) -> Tensors:
    dense = {}
    for name, value in tensors.items():
        module = name.rsplit(".", 1)[0]
        if name.endswith((".scales", ".biases")):
            continue
        if module + ".scales" in tensors:
            scales, biases = tensors[module + ".scales"].float(), tensors[module + ".biases"].float()
            bits, group = width(config, table, module, value.shape[-1], scales.shape[-1])
            stream = np.unpackbits(value.numpy().view(np.uint8), axis=-1, bitorder="little")
            codes = stream.reshape(*stream.shape[:-1], -1, bits) @ (1 << np.arange(bits))
            value = torch.from_numpy(codes).float().unflatten(-1, (-1, group))
            value = (value * scales[..., None] + biases[..., None]).flatten(-2)
        dense[name] = value
    return dense


def rename(t: dict[str, Any], dense: Tensors, mtplx: bool) -> Tensors:
    """Pack names -> released names and conventions. Only MTPLX stores norms one-centred."""
    out = {}
    for stored, value in dense.items():
        name = stored.replace("language_model.model.", "model.language_model.")
        name = name.replace("language_model.lm_head", "lm_head").replace(".shards.", ".shard_")
        head, sep, leaf = name.partition(".switch_mlp.")
        if stored.startswith("vision_tower."):
            continue
        if mtplx and name.endswith(ONE_CENTRED):
            value = value.float() - 1.0
        elif mtplx and name in ("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"):
            # stored zero-centred; MTPLX rounds 1 + w to the stored dtype when it attaches the head
            value = (value.float() + 1.0).to(value.dtype).float() - 1.0
        elif name.endswith(("conv1d.weight", "ple.conv_weight")):
            name = name.replace("ple.conv_weight", "ple.conv1d.weight")
            value = value.movedim(1, 2).contiguous()
        elif name == "ngram.weight":
            layer = f"model.language_model.layers.{t['ple_layer_ids'][0] - 1}"
            name = f"{layer}.ple.ple_embedding.ngram_embedding.shard_0.weight"
        if leaf == "down_proj.weight":
            name = head + ".experts.down_proj"
        elif leaf == "gate_proj.weight":
            name = head + ".experts.gate_up_proj"
            value = torch.cat([value, dense[stored.replace("gate_proj", "up_proj")]], dim=1)
        if not sep or leaf != "up_proj.weight":
            out[name] = value
    return out


def pack_experts(tensors: Tensors) -> Tensors:
    """Numbered expert matrices -> the packed [E,2I,H] / [E,H,I] pair."""
    out, groups = {}, {}
    for name, value in tensors.items():
        head, sep, tail = name.partition(".mlp.experts.")
        if sep and tail[0].isdigit():
            index, projection = tail.split(".")[:2]
            groups.setdefault(head, {}).setdefault(projection, {})[int(index)] = value
        else:
            out[name] = value
    for head, parts in groups.items():
        count = len(parts["gate_proj"])
        gate, up, down = (
            torch.stack([parts[p][e] for e in range(count)]) for p in ("gate_proj", "up_proj", "down_proj")
        )
        out[f"{head}.mlp.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
        out[f"{head}.mlp.experts.down_proj"] = down
    return out
