#!/usr/bin/env python3
"""Write a small random qwen4_exp checkpoint in the released (Hugging Face) layout.

    make_tiny.py OUT [--preset small|wide|ties] [--seed N] [--dtype bf16|f32]
                     [--set FIELD=VALUE ...] [--experts packed|split] [--no-mtp]
                     [--shards N]

OUT receives config.json, model.safetensors.index.json and N (default 2)
safetensors files.  Only numpy is needed; the safetensors container is written
here.  Every tensor is drawn from its own stream keyed by (seed, tensor name), so
adding a tensor or a layer never changes the others.

Presets (all have hc_count 4, compress ratio 4, 3-grams, one PLE layer at index 1):
  small  5 layers (GDN, GDN+PLE, QSA, GDN, QSA), head dims 32, budget 16.
  wide   4 layers (GDN, GDN+PLE, GDN, QSA) with the released per-head geometry:
         GDN 128x128, attention 256 (rotary 64, M-RoPE 11/11/10), index head 128,
         three value heads per key head, 12 query heads per KV head, budget 32.
  ties   `small` with one indexer head, so that zero ReLU scores tie at the cut.

--set overrides any text_config field (JSON value), for example
  --set num_experts=8 --set 'layer_types=["linear_attention","full_attention"]'

The values are chosen to exercise the arithmetic: norm weights are not zero, the
PLE convolution is not zero (a freshly initialised reference model has it zero),
decays span 0.2 to 0.99, and router logits are spread so that near-ties are rare.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import zlib
from pathlib import Path

import numpy as np

TEXT_DEFAULTS = {
    "model_type": "qwen4_exp_text",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "output_gate_type": "sigmoid",
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "use_cache": True,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 4096,
    "hc_count": 4,
    "linear_conv_kernel_dim": 4,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "make_ngram_vocab_size_divisible_by": 16,
    "split_ngram_parts": 4,
    "seed": 1234,
    "indexer_kv_heads": 1,
    "indexer_compress_ratio": 4,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
}

SMALL = {
    "vocab_size": 160,
    "hidden_size": 48,
    "num_hidden_layers": 5,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "hc_lowrank": 12,
    "ple_layer_ids": [2],
    "ple_embed_dim": 128,
    "ngram_vocab_size_base": 150,
    "indexer_n_heads": 4,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "bos_token_id": 150,
    "eos_token_id": 151,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    },
}
WIDE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 12,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 24,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 64 - 24,
    "shared_expert_intermediate_size": 40,
    "hc_lowrank": 20,
    "ple_layer_ids": [2],
    "ple_embed_dim": 512,
    "ngram_vocab_size_base": 200,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "indexer_budget": 32,
    "bos_token_id": 300,
    "eos_token_id": [301, 302],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
}
PRESETS = {"small": SMALL, "wide": WIDE, "ties": {**SMALL, "indexer_n_heads": 1}}

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


# ------------------------------------------------------------------ n-gram constants
def mix64(x: int) -> int:
    x = (x + GOLDEN) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def hash_multipliers(vocab: int, order: int, ple_index: int, seed: int) -> list[int]:
    span = max(1, (((1 << 63) - 1) // vocab) // 2)
    start = seed + 10007 * ple_index
    return [2 * (mix64((start + GOLDEN * (k + 1)) & MASK64) % span) + 1 for k in range(order)]


def table_layout(t: dict, ple_index: int) -> tuple[list[int], list[int], int]:
    """(prime size per head, row offset per head, padded row count)."""
    heads = (t["ngram_size"] - 1) * t["heads_per_ngram"]
    primes, n = [], t["ngram_vocab_size_base"]
    while len(primes) < heads * (ple_index + 1):
        if n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1)):
            primes.append(n)
        n += 1
    sizes = primes[heads * ple_index :]
    offsets = [sum(sizes[:i]) for i in range(heads)]
    div = t["make_ngram_vocab_size_divisible_by"]
    return sizes, offsets, -(-sum(sizes) // div) * div


# ------------------------------------------------------------------ tensor list
class Bag:
    """Collects (name -> float32 or int64 array) with a per-name random stream."""

    def __init__(self, seed: int):
        self.seed, self.t = seed, {}

    def rng(self, name: str):
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def put(self, name, array):
        assert name not in self.t, name
        self.t[name] = np.ascontiguousarray(array)

    def linear(self, name, out, inp, gain=1.0):
        self.put(name, self.rng(name).standard_normal((out, inp)) * (gain / math.sqrt(inp)))

    def zero_norm(self, name, dim, spread=0.25):
        self.put(name, self.rng(name).standard_normal(dim) * spread)


def hyper(b: Bag, p: str, t: dict, write=True):
    h, c, r = t["hidden_size"], t["hc_count"], t["hc_lowrank"]
    b.zero_norm(f"{p}.hc_norm.weight", h * c)
    b.linear(f"{p}.input_mix_weight_down.weight", r, h * c, gain=6.0)
    b.linear(f"{p}.input_mix_weight_up.weight", h * c, r, gain=2.0)
    if write:
        b.linear(f"{p}.block_inject_weight.weight", c, h * c, gain=4.0)


def moe(b: Bag, p: str, t: dict, packed=True):
    h, e, i = t["hidden_size"], t["num_experts"], t["moe_intermediate_size"]
    s = t["shared_expert_intermediate_size"]
    b.linear(f"{p}.gate.weight", e, h, gain=2.0)
    name = f"{p}.experts.gate_up_proj"
    gate_up = b.rng(name).standard_normal((e, 2 * i, h)) / math.sqrt(h)
    name_d = f"{p}.experts.down_proj"
    down = b.rng(name_d).standard_normal((e, h, i)) * (1.5 / math.sqrt(i))
    if packed:
        b.put(name, gate_up)
        b.put(name_d, down)
    else:
        for k in range(e):
            b.put(f"{p}.experts.{k}.gate_proj.weight", gate_up[k, :i])
            b.put(f"{p}.experts.{k}.up_proj.weight", gate_up[k, i:])
            b.put(f"{p}.experts.{k}.down_proj.weight", down[k])
    b.linear(f"{p}.shared_expert.gate_proj.weight", s, h)
    b.linear(f"{p}.shared_expert.up_proj.weight", s, h)
    b.linear(f"{p}.shared_expert.down_proj.weight", h, s, gain=1.5)
    b.linear(f"{p}.shared_expert_gate.weight", 1, h)


def attention(b: Bag, p: str, t: dict):
    h, d, q, kv = (t[k] for k in ("hidden_size", "head_dim", "num_attention_heads", "num_key_value_heads"))
    b.linear(f"{p}.q_proj.weight", q * d * 2, h)
    b.linear(f"{p}.k_proj.weight", kv * d, h)
    b.linear(f"{p}.v_proj.weight", kv * d, h)
    b.linear(f"{p}.o_proj.weight", h, q * d, gain=1.5)
    b.zero_norm(f"{p}.q_norm.weight", d)
    b.zero_norm(f"{p}.k_norm.weight", d)
    di = t["indexer_head_dim"]
    b.linear(f"{p}.indexer.index_qk_proj.weight", (t["indexer_n_heads"] + 1) * di, h)
    b.zero_norm(f"{p}.indexer.q_layernorm.weight", di)
    b.zero_norm(f"{p}.indexer.k_layernorm.weight", di)


def deltanet(b: Bag, p: str, t: dict):
    h = t["hidden_size"]
    nk, nv = t["linear_num_key_heads"], t["linear_num_value_heads"]
    dk, dv = t["linear_key_head_dim"], t["linear_value_head_dim"]
    conv = 2 * nk * dk + nv * dv
    b.linear(f"{p}.in_proj_qkv.weight", conv, h)
    b.linear(f"{p}.in_proj_z.weight", nv * dv, h)
    b.linear(f"{p}.in_proj_a.weight", nv, h)
    b.linear(f"{p}.in_proj_b.weight", nv, h)
    b.put(
        f"{p}.conv1d.weight", b.rng(f"{p}.conv1d.weight").standard_normal((conv, 1, t["linear_conv_kernel_dim"])) * 0.6
    )
    b.put(f"{p}.A_log", np.log(b.rng(f"{p}.A_log").uniform(0.02, 1.0, nv)))
    b.put(f"{p}.dt_bias", b.rng(f"{p}.dt_bias").standard_normal(nv) * 0.7)
    b.put(f"{p}.norm.weight", 1.0 + b.rng(f"{p}.norm.weight").standard_normal(dv) * 0.2)
    b.linear(f"{p}.out_proj.weight", h, nv * dv, gain=1.5)


def ple(b: Bag, p: str, t: dict, ple_index: int):
    h, c, e = t["hidden_size"], t["hc_count"], t["ple_embed_dim"]
    heads = (t["ngram_size"] - 1) * t["heads_per_ngram"]
    b.linear(f"{p}.key_proj.weight", h * c, e)
    b.linear(f"{p}.value_proj.weight", h, e, gain=1.5)
    for n in ("norm_key", "norm_query", "norm_conv"):
        b.zero_norm(f"{p}.{n}.weight", h * c)
    b.put(
        f"{p}.conv1d.weight", b.rng(f"{p}.conv1d.weight").standard_normal((h * c, 1, t["ple_conv_kernel_size"])) * 0.4
    )
    sizes, offsets, rows = table_layout(t, ple_index)
    q = f"{p}.ple_embedding"
    b.put(
        f"{q}.layer_multipliers",
        np.array(hash_multipliers(t["vocab_size"], t["ngram_size"], ple_index, t["seed"]), np.int64),
    )
    b.put(f"{q}.ngram_heads_vocab_sizes", np.array(sizes, np.int64))
    b.put(f"{q}.ngram_heads_offsets", np.array(offsets, np.int64))
    parts = t["split_ngram_parts"]
    assert rows % parts == 0, "padded rows must split evenly over split_ngram_parts"
    name = f"{q}.ngram_embedding"
    table = b.rng(name).standard_normal((rows, e // heads))
    for k in range(parts):
        b.put(f"{name}.shard_{k}.weight", table[k * rows // parts : (k + 1) * rows // parts])


def build(t: dict, seed: int, packed=True, mtp=True) -> dict:
    b, h = Bag(seed), t["hidden_size"]
    root = "model.language_model"
    b.put(f"{root}.embed_tokens.weight", b.rng(f"{root}.embed_tokens.weight").standard_normal((t["vocab_size"], h)))
    for i, kind in enumerate(t["layer_types"]):
        p = f"{root}.layers.{i}"
        if i + 1 in t["ple_layer_ids"]:
            ple(b, f"{p}.ple", t, sorted(t["ple_layer_ids"]).index(i + 1))
        hyper(b, f"{p}.attn_hyper_connection", t)
        if kind == "linear_attention":
            deltanet(b, f"{p}.linear_attn", t)
        else:
            attention(b, f"{p}.self_attn", t)
        hyper(b, f"{p}.mlp_hyper_connection", t)
        moe(b, f"{p}.mlp", t, packed)
    hyper(b, f"{root}.hyper_connection_mixer", t, write=False)
    b.linear("lm_head.weight", t["vocab_size"], h, gain=3.0)
    if mtp:
        b.zero_norm("mtp.pre_fc_norm_embedding.weight", h)
        b.zero_norm("mtp.pre_fc_norm_hidden.weight", h * t["hc_count"])
        b.linear("mtp.fc_embedding.weight", h, h)
        b.linear("mtp.fc_hidden.weight", h, h)
        p = "mtp.layers.0"
        hyper(b, f"{p}.attn_hyper_connection", t)
        attention(b, f"{p}.self_attn", t)
        hyper(b, f"{p}.mlp_hyper_connection", t)
        moe(b, f"{p}.mlp", t, packed)
        hyper(b, "mtp.hyper_connection_mixer", t, write=False)
    return b.t


# ------------------------------------------------------------------ container
def to_bf16(a: np.ndarray) -> np.ndarray:
    u = np.asarray(a, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")


def write_safetensors(path: Path, tensors: dict, dtype: str, metadata=None) -> int:
    header, blobs, at = {"__metadata__": metadata or {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        a = tensors[name]
        if a.dtype == np.int64:
            tag, raw = "I64", a.astype("<i8").tobytes()
        elif dtype == "bf16":
            tag, raw = "BF16", to_bf16(a).tobytes()
        else:
            tag, raw = "F32", a.astype("<f4").tobytes()
        header[name] = {"dtype": tag, "shape": list(a.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        blobs.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for raw in blobs:
            f.write(raw)
    return at


def make(out: Path, preset="small", seed=0, dtype="bf16", overrides=None, packed=True, mtp=True, shards=2, edit=None):
    """Write one checkpoint; `edit(tensors, text_config)` may change values before they are stored."""
    t = {**TEXT_DEFAULTS, **PRESETS[preset], **(overrides or {})}
    t["num_hidden_layers"] = len(t["layer_types"])
    t["dtype"] = "bfloat16" if dtype == "bf16" else "float32"
    h, i = t["hidden_size"], t["moe_intermediate_size"]
    if h in (i, 2 * i):
        raise SystemExit("moe_intermediate_size equal to hidden or hidden/2 makes packed experts ambiguous")
    rot = int(t["head_dim"] * t["rope_parameters"]["partial_rotary_factor"])
    assert sum(t["rope_parameters"]["mrope_section"]) == rot // 2
    assert rot <= t["indexer_head_dim"]
    t["mtp"] = {
        "hybrid": True,
        "layer_types": ["full_attention"],
        "num_hidden_layers": 1,
        "mtp_use_hidden_state_from_layer": None,
        "rope_theta": t["rope_parameters"]["rope_theta"],
    }
    tensors = build(t, seed, packed, mtp)
    if edit is not None:
        edit(tensors, t)
    out.mkdir(parents=True, exist_ok=True)
    names, weight_map, total = sorted(tensors), {}, 0
    bulk = [n for n in names if ".ngram_embedding.shard_" in n]
    rest = [n for n in names if n not in set(bulk)]
    groups = [rest[k :: max(1, shards - 1)] for k in range(max(1, shards - 1))] + ([bulk] if shards > 1 else [])
    if shards == 1:
        groups = [names]
    for k, group in enumerate(groups):
        file = f"model-{k + 1:05d}-of-{len(groups):05d}.safetensors"
        total += write_safetensors(out / file, {n: tensors[n] for n in group}, dtype)
        weight_map.update(dict.fromkeys(group, file))
    (out / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, indent=1)
    )
    config = {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "tie_word_embeddings": False,
        "dtype": t["dtype"],
        "text_config": t,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1))
    return total


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", type=Path)
    ap.add_argument("--preset", choices=sorted(PRESETS), default="small")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    ap.add_argument("--set", action="append", default=[], metavar="FIELD=JSON", dest="sets")
    ap.add_argument("--experts", choices=("packed", "split"), default="packed")
    ap.add_argument("--no-mtp", action="store_true")
    ap.add_argument("--shards", type=int, default=2)
    a = ap.parse_args()
    over = {k: json.loads(v) for k, v in (s.split("=", 1) for s in a.sets)}
    n = make(a.out, a.preset, a.seed, a.dtype, over, a.experts == "packed", not a.no_mtp, a.shards)
    print(f"{a.out}: {n} payload bytes")


if __name__ == "__main__":
    main()
