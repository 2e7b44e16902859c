"""The model goldens' tables: which checkpoints exist, and which prompts run on each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

GDN, QSA = "linear_attention", "full_attention"
Tensors = dict[str, np.ndarray]


# ------------------------------------------------------------------ tensors whose block scores all tie
def zero_scores(tensors: Tensors, t: dict[str, Any]) -> None:
    """Index queries of zero: every block scores exactly 0, so the lowest ids win."""
    rows = t["indexer_n_heads"] * t["indexer_head_dim"]
    for name, value in tensors.items():
        if name.endswith("indexer.index_qk_proj.weight"):
            value[:rows] = 0.0


def equal_scores(tensors: Tensors, t: dict[str, Any]) -> None:
    """Layer 0 scores 3 for every block, whatever the tokens are, so the highest ids win.

    Embeddings are signs with a leading +1, hence every stream has the same norm and the mix gate of layer 0
    (up weights zero) is one half: u[0] is one constant. The index projection reads u[0] alone, into one
    dimension that does not rotate, and large enough for the norm's epsilon to vanish.
    """
    zero_scores(tensors, t)
    embed = tensors["model.language_model.embed_tokens.weight"]
    embed[:] = np.sign(embed)
    embed[:, 0] = 1.0
    layer = "model.language_model.layers.0"
    tensors[f"{layer}.attn_hyper_connection.input_mix_weight_up.weight"][:] = 0.0
    heads, dim = t["indexer_n_heads"], t["indexer_head_dim"]
    project = tensors[f"{layer}.self_attn.indexer.index_qk_proj.weight"]
    project[:] = 0.0
    project[dim - 1 :: dim, 0] = 512.0
    tensors[f"{layer}.self_attn.indexer.q_layernorm.weight"][:] = 3.0 / (heads * dim**0.5) - 1.0
    tensors[f"{layer}.self_attn.indexer.k_layernorm.weight"][:] = 0.0


# ------------------------------------------------------------------ checkpoints
@dataclass(frozen=True)
class Checkpoint:
    """One folder of weights: make_tiny.py's arguments and, for a pack, MTPLX's recipe."""

    seed: int
    geometry: dict[str, Any]
    recipe: dict[str, Any] | str | None = None  # None: released layout; str: an MTPLX named recipe
    vlm: tuple[int, int] | None = None  # bits and group size of a conversion by mlx-vlm
    dtype: str = "bf16"
    packed: bool = True
    shards: int = 2
    edit: Callable[[Tensors, dict[str, Any]], None] | None = None


ROPE = {
    "rope_type": "default",
    "rope_theta": 10_000_000,
    "partial_rotary_factor": 0.5,
    "mrope_interleaved": True,
    "mrope_section": [2, 1, 1],
}
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 36,
    "layer_types": [GDN, GDN, QSA, QSA],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "num_experts": 10,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 28,
    "hc_lowrank": 10,
    "heads_per_ngram": 2,
    "ple_embed_dim": 48,
    "ngram_vocab_size_base": 83,
    "make_ngram_vocab_size_divisible_by": 16,
    "split_ngram_parts": 4,
    "indexer_n_heads": 2,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "bos_token_id": 62,
    "eos_token_id": 63,
    "rope_parameters": ROPE,
}
TIES: dict[str, Any] = SMALL | {
    "vocab_size": 32,
    "hidden_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "hc_lowrank": 6,
    "ple_embed_dim": 32,
    "ngram_vocab_size_base": 29,
    "indexer_budget": 32,
    "bos_token_id": 30,
    "eos_token_id": 31,
}
# the released head geometry: GDN 128 x 128, attention 256 with M-RoPE 11/11/10, index heads of 128
WIDE: dict[str, Any] = SMALL | {
    "layer_types": [GDN, QSA],
    "ple_layer_ids": [1],
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 24,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 20,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "indexer_budget": 32,
    "bos_token_id": 60,
    "eos_token_id": [61, 63],
    "rope_parameters": ROPE | {"partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
}
# two streams, blocks of eight, one KV head, a table with many heads, GDN after attention
ODD: dict[str, Any] = SMALL | {
    "hc_count": 2,
    "indexer_compress_ratio": 8,
    "indexer_budget": 24,
    "indexer_n_heads": 3,
    "num_key_value_heads": 1,
    "heads_per_ngram": 8,
    "ple_embed_dim": 64,
    "layer_types": [GDN, QSA, GDN, GDN],
    "ple_layer_ids": [3],
    "linear_num_value_heads": 6,
}
# static YaRN: interpolated, ramped and plain frequencies, amplitude above one
YARN: dict[str, Any] = SMALL | {
    "layer_types": [GDN, QSA],
    "ple_layer_ids": [1],
    "head_dim": 64,
    "indexer_head_dim": 48,
    "rope_parameters": ROPE
    | {
        "rope_type": "yarn",
        "rope_theta": 10_000,
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
        "mrope_section": [6, 5, 5],
    },
}
PACKED: dict[str, Any] = SMALL | {
    "hidden_size": 64,
    "layer_types": [GDN, GDN, QSA],
    "linear_value_head_dim": 32,
    "head_dim": 32,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "hc_lowrank": 32,
    "ple_embed_dim": 128,
    "indexer_head_dim": 32,
    "bos_token_id": 61,
    "eos_token_id": [62, 63],
    "rope_parameters": ROPE | {"partial_rotary_factor": 0.25},
}


def rule(suffix: str, bits: int, group: int, layer: int | None = None) -> dict[str, Any]:
    return {"suffix": suffix, "bits": bits, "group_size": group} | ({} if layer is None else {"layers": [layer]})


def widths(suffix: str, bits: list[int]) -> list[dict[str, Any]]:
    return [rule(suffix, b, 32, i) for i, b in enumerate(bits)]


# the Bare-Speed body, with the narrowest table and draft experts
NARROW = {
    "name": "narrow",
    "body_bits": 4,
    "body_group_size": 64,
    "ngram": {"bits": 2, "group_size": 32},
    "qwen4_mtp_bits": 3,
    "module_overrides": [rule("out_proj", 4, 64), rule("lm_head", 4, 64), rule("shared_expert_gate", 4, 64)],
}
# every width somewhere, differing by layer and by projection; hyper connections and PLE quantised as well
MIXED = {
    "name": "mixed-widths",
    "body_bits": 5,
    "body_group_size": 32,
    "ngram": {"bits": 8, "group_size": 32},
    "qwen4_mtp_bits": 6,
    "module_overrides": [
        *widths("switch_mlp.gate_proj", [2, 6, 8]),
        *widths("switch_mlp.up_proj", [3, 2, 6]),
        *widths("switch_mlp.down_proj", [5, 3, 4]),
        rule("in_proj_qkv", 3, 64),
        rule("in_proj_z", 6, 32),
        rule("in_proj_a", 8, 32),
        rule("out_proj", 5, 64),
        rule("q_proj", 6, 64),
        rule("k_proj", 3, 32),
        rule("v_proj", 2, 32),
        rule("o_proj", 5, 128),
        rule("index_qk_proj", 6, 32),
        {"suffix": "mlp.gate", "quantize": False},
        rule("shared_expert_gate", 3, 32),
        rule("shared_expert.gate_proj", 2, 64),
        rule("shared_expert.up_proj", 5, 32),
        rule("shared_expert.down_proj", 3, 128),
        rule("embed_tokens", 6, 64),
        rule("lm_head", 5, 64),
        rule("attn_hyper_connection.input_mix_weight_down", 8, 64),
        rule("input_mix_weight_up", 6, 32),
        rule("ple.key_proj", 5, 64),
        rule("ple.value_proj", 3, 32),
    ],
}

CHECKPOINTS: dict[str, Checkpoint] = {
    "small": Checkpoint(2101, SMALL, shards=3),
    "split": Checkpoint(2102, SMALL | {"indexer_n_heads": 1, "num_experts": 5}, packed=False, dtype="f32"),
    "wide": Checkpoint(2103, WIDE),
    "odd": Checkpoint(2104, ODD),
    "yarn": Checkpoint(2112, YARN),
    "ties0": Checkpoint(2105, TIES | {"layer_types": [GDN, GDN, QSA]}, edit=zero_scores),
    "ties3": Checkpoint(2106, TIES | {"layer_types": [QSA, GDN]}, edit=equal_scores),
    "speed": Checkpoint(2107, PACKED, recipe="flash-next-optimized-speed"),
    "quality": Checkpoint(2108, PACKED, recipe="flash-next-optimized-quality"),
    "narrow": Checkpoint(2109, PACKED, recipe=NARROW),
    "mixed": Checkpoint(2110, PACKED, recipe=MIXED),
    "vlm": Checkpoint(2111, PACKED, vlm=(4, 32)),
}


# ------------------------------------------------------------------ cases
@dataclass(frozen=True)
class Case:
    """One prompt. `ids` may be redrawn until no selection or arg-max on the way is a near tie."""

    length: int
    eos_at: tuple[int, ...] = ()
    other_eos_at: tuple[int, ...] = ()  # the list's second entry: a stop, not an n-gram boundary
    chunks: tuple[int, ...] = ()
    also: tuple[tuple[int, ...], ...] = ()
    rollback: tuple[int, int, int] | None = None  # prefix, window, keep; length = prefix + window
    greedy: int = 0
    full: bool = False
    keep: Callable[[str], bool] = field(default=lambda name: True)
    bf16: bool = True


def trunk_only(name: str) -> bool:
    """Without the draft head's own arrays, which another case of the same ids would repeat."""
    return not name.startswith("mtp.") or name.startswith("mtp.chain")


def rollback(prefix: int, window: int, keep: int, eos_at: tuple[int, ...] = ()) -> Case:
    return Case(prefix + window, eos_at=eos_at, rollback=(prefix, window, keep), keep=trunk_only, bf16=False)


def edges(budget: int, block: int) -> list[int]:
    """Lengths around the budget, and around the first block that is not selected."""
    return sorted({budget + d for d in (-block, -1, 0, 1, block - 1, block, block + 1, 2 * block - 1, 2 * block)})


def small_cases() -> dict[str, Case]:
    each = tuple((i, 12 - i) for i in range(1, 12))
    out = {f"length_{n}": Case(n) for n in (1, 2, 3, 4, 5, 7, 8, 9)}
    out |= {f"edge_{n}": Case(n, full=n == 20) for n in edges(16, 4)}
    out |= {
        "eos_only": Case(1, eos_at=(0,)),
        "eos_first": Case(14, eos_at=(0,)),
        "eos_second": Case(14, eos_at=(1,)),
        "eos_second_last": Case(14, eos_at=(12,)),
        "eos_last": Case(14, eos_at=(13,)),
        "eos_runs": Case(23, eos_at=(0, 4, 5, 9, 21, 22), full=True),
        "eos_all": Case(11, eos_at=tuple(range(11))),
        "long": Case(97, eos_at=(0, 21, 22, 50, 96), also=((1, 6, 13, 17, 4, 3, 2, 31, 20), (64, 33), (1,) * 97)),
        "decode": Case(49, eos_at=(21, 22), chunks=(11, *(1,) * 38)),
        "two_turns": Case(70, chunks=(40, *(1,) * 7, 19, 1, 1, 1, 1)),
        "greedy": Case(30, eos_at=(8,), greedy=20),
        "greedy_one": Case(1, greedy=24),
        "split_each": Case(12, also=(*each, (1,) * 12)),
    }
    out |= {f"split_{i:02d}": Case(12, chunks=(i, 12 - i), keep=trunk_only, bf16=False) for i, _ in each}
    out |= {f"keep_{k}_of_8": rollback(17, 8, k) for k in range(1, 9)}
    out |= {f"keep_{k:02d}_of_25": rollback(14, 25, k) for k in range(1, 26)}
    out |= {f"keep_{k}_after_one": rollback(1, 4, k) for k in (1, 2, 4)}
    out |= {f"keep_{k}_eos": rollback(20, 6, k, (20, 21, 23)) for k in (1, 2, 3, 5)}
    return out


def short_cases(budget: int = 16, block: int = 4) -> dict[str, Case]:
    """What every further geometry and layout runs."""
    edge, long = budget + block, 2 * budget + 13
    return {
        "one": Case(1),
        "eos": Case(15, eos_at=(0, 4, 5, 13, 14), other_eos_at=(8,)),
        "edge": Case(edge, full=True),
        "long": Case(long, eos_at=(3, long - 1), other_eos_at=(9,), also=((budget, long - budget), (1,) * long)),
        "decode": Case(edge + 9, chunks=(edge - 3, *(1,) * 12)),
        "keep_3_of_4": rollback(edge - 1, 4, 3),
        "greedy": Case(9, greedy=15),
    }


def width_cases() -> dict[str, Case]:
    """What differs between packs is arithmetic, not state."""
    return {"one": Case(1), "edge": Case(20, full=True), "decode": Case(29, chunks=(17, *(1,) * 12)),
            "greedy": Case(9, greedy=15)}  # fmt: skip


def zero_score_cases() -> dict[str, Case]:
    """With one index head zero scores are frequent, and most cuts fall among them."""
    return {"one": Case(1), "edge": Case(20, full=True), "long": Case(97, also=((40, 57),)),
            "greedy": Case(9, greedy=15)}  # fmt: skip


def tie_cases() -> dict[str, Case]:
    def keep(name: str) -> bool:
        by_row = name == "hyper" or name.endswith((".k", ".v", ".raw"))
        return trunk_only(name) and not by_row and (name[0] != "L" or name.endswith(".select")) and name != "final.mix"

    return {"600_blocks": Case(2403, chunks=(2400, 1, 1, 1), also=((1203, 1200),), full=True, keep=keep, bf16=False)}


def cases(checkpoint: str) -> dict[str, Case]:
    return {
        "small": small_cases,
        "split": zero_score_cases,
        "wide": lambda: short_cases(32),
        "odd": lambda: short_cases(24, 8),
        "ties0": tie_cases,
        "ties3": tie_cases,
        "quality": width_cases,
        "narrow": width_cases,
        "yarn": width_cases,
        "vlm": lambda: {n: replace(c, bf16=False) for n, c in short_cases().items()},
    }.get(checkpoint, short_cases)()


def draw_ids(case: Case, geometry: dict[str, Any], seed: str) -> list[int]:
    """Uniform ids, with the eos tokens only where the case puts them."""
    eos = geometry["eos_token_id"]
    stops = eos if isinstance(eos, list) else [eos]
    plain = [i for i in range(geometry["vocab_size"]) if i not in stops]
    ids = random.Random(seed).choices(plain, k=case.length)
    for position in case.eos_at:
        ids[position] = stops[0]
    for position in case.other_eos_at:
        ids[position] = stops[-1]
    return ids
