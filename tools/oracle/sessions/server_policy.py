"""What MTPLX 2.12.2's server makes of its environment on the Flash-Next geometry: 268 cases.

    python server_policy.py OUT.json

33 variables x {0, 1, off, empty} x {mtp, ar}, and the obsolete pipeline flag unset and set in both modes. A case is
what the server stamps beside the operator's own variable. The file holds the stamp of an empty environment for each
mode, and of each case only the names that are missing from it (`removed`): no case adds or changes one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "decode"))
import oracle_env  # noqa: F401  makes mtplx importable and clears MTPLX_*
from mtplx.server import openai as server

GEOMETRY = {
    "model_type": "qwen4_exp_text",
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "hc_count": 4,
    "hc_lowrank": 320,
    "indexer_compress_ratio": 4,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "num_key_value_heads": 2,
    "num_attention_heads": 24,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "ple_layer_ids": [2],
    "ngram_size": 3,
    "ngram_vocab_size_base": 20_000_000,
    "heads_per_ngram": 8,
    "ple_embed_dim": 2560,
    "ngram_sidecar": True,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 640,
    "vocab_size": 248_320,
    "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(48)],
}
KEYS = """
    FAMILY_CAPTURE_COMMIT FUSED_HC_V3 FUSED_GDN_INPROJ FUSED_GATE_UP FUSED_GDN_CONVNORM FUSED_GDN_STEP
    FUSED_CONVNORM_VERIFY QSA_GATHER COMPILED_GDN QWEN4EXP_COMPILE QWEN4_BATCHED_TARGET_DISTRIBUTIONS
    QWEN4_FIXED_M4_VERIFY QWEN4_COMPILED_MTP_PREPARE QWEN4_RELAXED_DRAFT_TIES QWEN4_OPDIET
    QWEN4_PLE_PREFILL_LOOKAHEAD QWEN4_PLE_FIRST_GATHER_EARLY SESSION_BANK_SHED_BOUNDARIES
    SESSION_BANK_PROTECTED_TERMINAL QWEN4_M4_STAGE3 NGRAM_PREWARM QWEN4_M4_ROUTED_DOWN_REDUCE
    QWEN4_M4_ROUTED_DOWN_RESIDUAL_TAIL QWEN4_M4_ROUTED_GLU QWEN4_ROUTE_KERNEL QWEN4_VERIFY_GLUE
    QWEN4_VERIFY_GLUE_ITEMS QSA_M4_FUSED_KV_GATHER QSA_GATHER_MAX_ROWS FRSPEC_DRAFT FRSPEC_VOCAB
    QWEN4_DRAFT_K20_PRESCATTER QWEN4_SAMPLED_DRAFT_CHAIN
""".split()


def pack_config() -> dict:
    """The production pack: 8-bit head in groups of 64, experts in groups of 32, 8-bit routers and shared experts."""
    eight = {"bits": 8, "group_size": 64}
    shared = [f"mlp.shared_expert.{m}_proj" for m in ("gate", "up", "down")]
    modules = ["mlp.gate", "mlp.shared_expert_gate", *shared]
    quantization = {"bits": 4, "group_size": 32, "mode": "affine", "language_model.lm_head": eight}
    for layer in range(GEOMETRY["num_hidden_layers"]):
        quantization |= {f"language_model.model.layers.{layer}.{module}": eight for module in modules}
    return {"model_type": "qwen4_exp", "text_config": GEOMETRY, "quantization": quantization}


def stamped(model: Path, mode: str, env: dict[str, str]) -> dict[str, str]:
    """Variables the server sets for a launch in this environment."""
    arguments = argparse.Namespace(
        model=str(model), generation_mode=mode, verify_strategy="batched", scheduler_mode="serial"
    )
    os.environ.update(env)
    try:
        return dict(sorted(server._server_runtime_env_overrides(arguments, {}).items()))
    finally:
        for name in env:
            del os.environ[name]


def main() -> None:
    server._qwen4_tensor_unit_gpu = lambda: False
    environments = [{}, {"MTPLX_AR_PIPELINE": "1"}]
    environments += [{f"MTPLX_{key}": text} for key in KEYS for text in ("0", "1", "off", "")]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(pack_config()))
        base = {mode: stamped(Path(folder), mode, {}) for mode in ("mtp", "ar")}
        cases = []
        for mode in ("mtp", "ar"):
            for env in environments:
                got = stamped(Path(folder), mode, env)
                assert got.items() <= base[mode].items(), (mode, env)
                cases.append({"mode": mode, "env": env, "removed": sorted(set(base[mode]) - set(got))})
    assert len(cases) == 268
    lines = ",\n".join(json.dumps(case) for case in cases)
    config = json.dumps(GEOMETRY)
    stamps = json.dumps(base)
    Path(sys.argv[1]).write_text(f'{{"text_config": {config},\n"stamped": {stamps},\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
