"""How MTPLX 2.12.2 reads the variables that this package listens to too, over a list of spellings.

    python gate_parse.py OUT.json

`parse`: variable -> spelling -> value, with `<unset>`, and "raises" where the reader raises ValueError. `compile_pair`:
the two compile gates over seven spellings each: on, off (nobody said anything) or `off!` (an explicit off). Variables
that are read inside long functions are not here.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "decode"))
import oracle_env  # noqa: F401  makes mtplx importable and clears MTPLX_*
from mtplx import (
    checkpoint_anchors,
    context_copy,
    engine_session,
    generation,
    ple_prefill_lookahead,
    ple_row_gather,
    runtime_options,
    session_bank,
)
from mtplx.cache_bank import cold_tier
from mtplx.models import qwen4_exp
from mtplx.server import openai as server

WORDS = ("", "0", "1", "true", "TRUE", " on ", "yes", "enabled", "false", "off", "no", "none", "2", "-1", "garbage")
WORDS += ("8G", "1.5GiB", "512mb", "7 KB", "auto", "full", "last-window", "write-only", "nan", "1e3", "3.5")
PAIR = (None, "", "0", "1", "off", "on", "garbage")
SSD_DEFAULT = -7  # a default no spelling gives


def prewarm() -> Any:
    mode = ple_row_gather.prewarm_mode_setting()[0]
    return mode[1] if isinstance(mode, tuple) else mode


def cached(reader: Callable[[], Any]) -> Callable[[], Any]:
    def read() -> Any:
        for module in (ple_prefill_lookahead, ple_row_gather):
            for name in ("enabled", "strict_enabled"):
                if hasattr(getattr(module, name, None), "cache_clear"):
                    getattr(module, name).cache_clear()
        return reader()

    return read


def ssd_size(name: str) -> Callable[[], Any]:
    return lambda: cold_tier.parse_size_bytes(os.environ.get(name), SSD_DEFAULT)


READERS: dict[str, Callable[[], Any]] = {
    "FAMILY_CAPTURE_COMMIT": generation._family_capture_commit_enabled,
    "CONTEXT_COPY": context_copy.context_copy_enabled,
    "MTP_HISTORY_POLICY": lambda: generation._resolve_mtp_history_policy("committed", 0),
    "MTP_HISTORY_LAST_WINDOW": generation._mtp_history_last_window_tokens,
    "PREFILL_CHUNK_SIZE": generation._prefill_chunk_size,
    "SMALL_SUFFIX_FUSED_MAX": generation._small_suffix_fused_max,
    "NGRAM_PREWARM": prewarm,
    "QWEN4_NGRAM_PREWARM_AT_LOAD": prewarm,
    "QWEN4_PLE_PREFILL_LOOKAHEAD": cached(lambda: ple_prefill_lookahead.enabled()),
    "QWEN4_PLE_FIRST_GATHER_EARLY": cached(lambda: ple_row_gather.enabled()),
    "SESSION_BANK_MAX_BYTES": lambda: engine_session.resolve_session_bank_max_bytes(None)[0],
    "SESSION_BANK_MAX_ENTRIES": engine_session._session_bank_max_entries,
    "SESSION_BANK_PER_SESSION_BYTES": engine_session._session_bank_per_session_max_bytes,
    "SESSION_BANK_PER_SESSION_MAX_ENTRIES": session_bank._per_session_max_entries,
    "SESSION_BANK_IDLE_TTL_S": engine_session.session_bank_idle_ttl_s,
    "SESSION_BANK_ACTIVE_PIN_TTL_S": session_bank._active_session_pin_ttl_s,
    "SESSION_NEAR_PREFIX_RESTORE": generation._near_prefix_restore_enabled,
    "SESSION_BLOCK_PREFIX_RESTORE": runtime_options.block_prefix_restore_enabled,
    "SESSION_NEAR_PREFIX_MAX_TOKEN_GAP": engine_session._near_prefix_max_token_gap,
    "SESSION_NEAR_PREFIX_MIN_MATCH_TOKENS": engine_session._near_prefix_min_match_tokens,
    "SESSION_PREFIX_BLOCK_SIZE": engine_session._prefix_block_size,
    "SESSION_BLOCK_PREFIX_MIN_MATCH_TOKENS": engine_session._block_prefix_min_match_tokens,
    "SESSION_STORE_ON_PREFILL": generation._store_on_prefill_env_enabled,
    "SESSION_STORE_ON_PREFILL_MIN_SUFFIX": generation._store_on_prefill_min_suffix,
    "GDN_BOUNDARY_MAX": checkpoint_anchors.default_checkpoint_count,
    "GDN_BOUNDARY_TAIL_INTERVAL": generation._gdn_boundary_tail_interval,
    "GDN_BOUNDARY_TAIL_BACKOFF": checkpoint_anchors.default_tail_backoff,
    "GDN_BOUNDARY_TAIL_MIN_RUNG": generation._gdn_boundary_tail_min_rung,
    "SSD_SESSION_CACHE_MAX_SIZE": ssd_size("MTPLX_SSD_SESSION_CACHE_MAX_SIZE"),
    "SSD_WRITE_BUDGET_PER_HOUR": ssd_size("MTPLX_SSD_WRITE_BUDGET_PER_HOUR"),
    "MEMORY_LIMIT_BYTES": server._explicit_memory_limit_bytes,
    "MEMORY_BUDGET": engine_session._memory_budget_bytes_env,
}


def gdn_gate() -> str:
    """State of the two compile gates, as a one-layer model reads them."""
    tiny = {
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "layer_types": ["linear_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 256,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "hc_count": 2,
        "hc_lowrank": 8,
        "indexer_n_heads": 2,
        "indexer_head_dim": 16,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [],
        "eos_token_id": 255,
    }
    model = qwen4_exp.Qwen4ExpTextModel(qwen4_exp.TextArgs.from_dict(tiny))
    return ("on" if model._gdn_compiled_env else "off") + ("!" if model._gdn_compile_explicit_off else "")


def under(env: dict[str, str | None], reader: Callable[[], Any]) -> Any:
    given = {f"MTPLX_{name}": text for name, text in env.items() if text is not None}
    os.environ.update(given)
    try:
        value = reader()
    except ValueError:
        value = "raises"
    finally:
        for name in given:
            del os.environ[name]
    return "never" if isinstance(value, float) and math.isinf(value) else value


def main() -> None:
    parse = {}
    for name, reader in READERS.items():
        parse[name] = {"<unset>": under({}, reader)} | {word: under({name: word}, reader) for word in WORDS}
    gates = ("COMPILED_GDN", "QWEN4EXP_COMPILE")
    pair = [[a, b, under(dict(zip(gates, (a, b), strict=True)), gdn_gate)] for a in PAIR for b in PAIR]
    for name in gates:
        parse[name] = {"<unset>": under({}, gdn_gate)} | {word: under({name: word}, gdn_gate) for word in WORDS}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(table)}" for name, table in parse.items())
    Path(sys.argv[1]).write_text(f'{{"parse": {{\n{lines}\n}},\n"compile_pair": {json.dumps(pair)}\n}}\n')


if __name__ == "__main__":
    main()
