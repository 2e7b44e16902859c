"""config.json of a qwen4_exp model as the flat numbers that the core checks. Owns defaults and spellings, no rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwenmtp.errors import ModelFormatError

FULL_ATTENTION = {"full_attention", "indexed_attention", "qwen_sparse_attention"}
REQUIRED = object()

# Core field, config.json field, default. Law: reference/model.md section 2.
INTEGERS: tuple[tuple[str, str, Any], ...] = (
    ("vocab_size", "vocab_size", 248320),
    ("hidden_size", "hidden_size", REQUIRED),
    ("max_position", "max_position_embeddings", 32768),
    ("n_heads", "num_attention_heads", REQUIRED),
    ("n_kv_heads", "num_key_value_heads", REQUIRED),
    ("head_dim", "head_dim", REQUIRED),
    ("index_heads", "indexer_n_heads", 4),
    ("index_dim", "indexer_head_dim", 128),
    ("index_budget", "indexer_budget", 2048),
    ("index_ratio", "indexer_compress_ratio", 4),
    ("gdn_key_heads", "linear_num_key_heads", REQUIRED),
    ("gdn_value_heads", "linear_num_value_heads", REQUIRED),
    ("gdn_key_dim", "linear_key_head_dim", 128),
    ("gdn_value_dim", "linear_value_head_dim", 128),
    ("gdn_conv_kernel", "linear_conv_kernel_dim", 4),
    ("n_experts", "num_experts", 512),
    ("top_k", "num_experts_per_tok", 10),
    ("expert_dim", "moe_intermediate_size", REQUIRED),
    ("shared_dim", "shared_expert_intermediate_size", REQUIRED),
    ("hc_count", "hc_count", 4),
    ("hc_rank", "hc_lowrank", 320),
    ("ple_conv_kernel", "ple_conv_kernel_size", 4),
    ("ngram_size", "ngram_size", 3),
    ("heads_per_ngram", "heads_per_ngram", 8),
    ("ngram_vocab_base", "ngram_vocab_size_base", 20_000_000),
    ("ngram_vocab_divisor", "make_ngram_vocab_size_divisible_by", 128),
    ("ngram_seed", "seed", 1234),
)

# Fields with one value that the network is written for.
FIXED: tuple[tuple[str, Any], ...] = (
    ("attention_bias", False),
    ("hidden_act", "silu"),
    ("output_gate_type", "sigmoid"),
    ("tie_word_embeddings", False),
    ("norm_topk_prob", True),
    ("indexer_kv_heads", 1),
    ("mamba_ssm_dtype", "float32"),
    ("mtp_use_dedicated_embeddings", False),
)


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of csrc/model/config.h from a parsed config.json.

    Raises:
        ModelFormatError: another model_type, a missing or ill-typed field, or a value nothing here implements.
    """
    if config.get("model_type") != "qwen4_exp":
        raise ModelFormatError(f"[model.config] model_type is {config.get('model_type')!r}, expected 'qwen4_exp'")
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise ModelFormatError("[model.config] text_config is missing, expected an object")
    for field, only in FIXED:
        if text.get(field, only) not in (only, None):
            raise ModelFormatError(f"[model.config] {field} is {text[field]!r}, expected {only!r}")
    flat: dict[str, Any] = {name: _integer(text, field, default) for name, field, default in INTEGERS}
    flat["rms_norm_eps"] = _number(text, "rms_norm_eps", 1e-6)
    flat["full_attention"] = _layer_types(text)
    ple = text.get("ple_layer_ids", [])
    if not isinstance(ple, list) or not all(_is_int(i) for i in ple):
        raise ModelFormatError(f"[model.config] ple_layer_ids is {ple!r}, expected a list of one-based layer numbers")
    flat["ple_layers"] = sorted({i - 1 for i in ple})
    flat["ple_dim"] = _integer(text, "ple_embed_dim", flat["hidden_size"])
    eos = text.get("eos_token_id")
    eos = eos[0] if isinstance(eos, list) and eos else eos
    if eos is not None and not _is_int(eos):
        raise ModelFormatError(f"[model.config] eos_token_id is {eos!r}, expected an id or a list of ids")
    flat["eos"] = -1 if eos is None else eos
    flat.update(_rope(text, flat["head_dim"]))
    return flat


def _layer_types(text: Mapping[str, Any]) -> list[bool]:
    """Per layer, whether it is an attention layer."""
    types = text.get("layer_types")
    count = _integer(text, "num_hidden_layers", len(types) if isinstance(types, list) else REQUIRED)
    if types is None:
        interval = _integer(text, "full_attention_interval", 4)
        if interval < 1:
            raise ModelFormatError(f"[model.config] full_attention_interval is {interval}, expected at least 1")
        return [(i + 1) % interval == 0 for i in range(count)]
    if not isinstance(types, list) or len(types) != count:
        raise ModelFormatError(f"[model.config] layer_types has no {count} entries, expected one a layer")
    unknown = [t for t in types if t not in FULL_ATTENTION | {"linear_attention"}]
    if unknown:
        raise ModelFormatError(f"[model.config] layer type {unknown[0]!r}, expected linear_attention or full_attention")
    return [t in FULL_ATTENTION for t in types]


def _rope(text: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    rope = text.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ModelFormatError("[model.config] rope_parameters is no object")
    factor = _number(rope, "partial_rotary_factor", 0.25)
    out: dict[str, Any] = {"rope_theta": _number(rope, "rope_theta", 1e7), "rotary_dim": round(head_dim * factor)}
    kind = rope.get("rope_type", "default")
    if kind == "yarn":
        out["yarn"] = {
            "factor": _number(rope, "factor", None),
            "original_max_position": _integer(rope, "original_max_position_embeddings", REQUIRED),
            "beta_fast": _number(rope, "beta_fast", 32.0),
            "beta_slow": _number(rope, "beta_slow", 1.0),
            "truncate": bool(rope.get("truncate", True)),
            "attention_factor": None if rope.get("attention_factor") is None else _number(rope, "attention_factor", 1),
            "mscale": _number(rope, "mscale", 0.0),
            "mscale_all_dim": _number(rope, "mscale_all_dim", 0.0),
        }
    elif kind != "default":
        raise ModelFormatError(f"[model.config] rope_type is {kind!r}, expected 'default' or 'yarn'")
    return out


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(text: Mapping[str, Any], field: str, default: Any) -> int:
    value = text.get(field)
    if value is None:
        if default is REQUIRED:
            raise ModelFormatError(f"[model.config] {field} is missing, expected an integer")
        value = default
    if not _is_int(value) or not -(2**63) <= value < 2**63:
        raise ModelFormatError(f"[model.config] {field} is {value!r}, expected an integer")
    return int(value)


def _number(text: Mapping[str, Any], field: str, default: float | None) -> float:
    value = text.get(field, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ModelFormatError(f"[model.config] {field} is {value!r}, expected a number")
    return float(value)
