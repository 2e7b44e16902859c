"""Checkpoint files as float tensors under the released names; needs torch and safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def load_checkpoint(path: Path):
    import torch
    from safetensors import safe_open

    config = json.loads((path / "config.json").read_text())
    cfg, tensors = config["text_config"], {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as f:
            if file.name == "ngram-table.safetensors":
                tensors["ngram.meta"] = f.metadata()
            for key in f.keys():  # not a mapping
                tensors[key] = f.get_tensor(key)
    if any(k.startswith("language_model.") for k in tensors):
        tensors = unpack(config, tensors, torch)
    return cfg, tensors, torch


ONE_CENTRED = tuple(
    f".{n}.weight"
    for n in ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "hc_norm", "norm_key", "norm_query", "norm_conv")
)


def unpack(config, tensors, torch):
    """An MTPLX pack as float32 tensors under the released names."""
    t, rules = config["text_config"], config.get("quantization") or {}
    meta = tensors.pop("ngram.meta", {"ngram_bits": "0"})

    def widths(module, packed, scales):
        if module == "ngram":
            return int(meta["ngram_bits"]), int(meta["ngram_group_size"])
        if not module.startswith("mtp."):
            rule = rules.get(module, rules)
            return rule["bits"], rule["group_size"]
        leaf = module.rsplit(".", 1)[1]
        inner = {"o_proj": t["num_attention_heads"] * t["head_dim"]}.get(leaf, t["hidden_size"])
        if leaf == "down_proj":
            inner = t["moe_intermediate_size" if "switch_mlp" in module else "shared_expert_intermediate_size"]
        return packed.shape[-1] * 32 // inner, inner // scales.shape[-1]

    dense = {}
    for key, value in tensors.items():
        if key.endswith((".scales", ".biases")):
            continue
        module = key.rsplit(".", 1)[0]
        if module + ".scales" in tensors:
            scales, biases = tensors[module + ".scales"].float(), tensors[module + ".biases"].float()
            bits, group = widths(module, value, scales)
            stream = np.unpackbits(value.numpy().view(np.uint8), axis=-1, bitorder="little")
            codes = stream.reshape(*stream.shape[:-1], -1, bits) @ (1 << np.arange(bits))
            codes = torch.from_numpy(codes).float().unflatten(-1, (-1, group))
            value = (codes * scales[..., None] + biases[..., None]).flatten(-2)
        dense[key] = value
    out = {}
    for key, value in dense.items():
        if key.startswith("vision_tower."):
            continue
        stored = key
        key = key.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head")
        if key.endswith(ONE_CENTRED):
            value = value.float() - 1.0
        elif key in ("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"):
            # stored zero-centred; MTPLX rounds 1 + w to the stored dtype when it attaches the head
            value = (value.float() + 1.0).to(value.dtype).float() - 1.0
        elif key.endswith("conv1d.weight") or key.endswith("ple.conv_weight"):
            key = key.replace("ple.conv_weight", "ple.conv1d.weight")
            value = value.movedim(1, 2).contiguous()
        head, sep, leaf = key.partition(".switch_mlp.")
        if sep:
            if leaf == "down_proj.weight":
                out[head + ".experts.down_proj"] = value
            elif leaf == "gate_proj.weight":
                up = dense[stored.replace("gate_proj", "up_proj")]
                out[head + ".experts.gate_up_proj"] = torch.cat([value, up], dim=1)
            continue
        if key == "ngram.weight":
            key = (
                f"model.language_model.layers.{t['ple_layer_ids'][0] - 1}.ple.ple_embedding."
                "ngram_embedding.shard_0.weight"
            )
        out[key] = value
    return out


def pack_experts(tensors, torch):
    """Numbered expert matrices -> the packed [E,2I,H] / [E,H,I] pair."""
    out, groups = {}, {}
    for k, v in tensors.items():
        head, sep, tail = k.partition(".mlp.experts.")
        if sep and tail[0].isdigit():
            idx, proj = tail.split(".")[:2]
            groups.setdefault(head, {}).setdefault(proj, {})[int(idx)] = v
        else:
            out[k] = v
    for head, p in groups.items():
        n = len(p["gate_proj"])
        gate, up, down = (torch.stack([p[q][i] for i in range(n)]) for q in ("gate_proj", "up_proj", "down_proj"))
        out[f"{head}.mlp.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
        out[f"{head}.mlp.experts.down_proj"] = down
    return out
