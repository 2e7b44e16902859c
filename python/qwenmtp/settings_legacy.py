"""MTPLX_* variables: which field each one sets, how its text is read, and which have no effect here.

A reading keeps what existing launch lines mean, oddities included. The letters are the classes of docs/settings.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qwenmtp import settings_values as v

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()


def read_a(raw: str) -> bool:
    """A: on by four words, all else is off."""
    return raw.strip().lower() in _ON


def read_b(raw: str) -> bool:
    """B: off by four words, all else is on."""
    return raw.strip().lower() not in _OFF


def read_c(default: bool) -> Callable[[str], bool]:
    """C: strict, empty is that reader's own default."""
    return lambda raw: v.bool_of_text(raw.strip()) if raw.strip() else default


def read_d(raw: str) -> bool:
    """D: strict with four words each way, empty is off."""
    word = raw.strip().lower()
    if word not in ("", *_ON, *_OFF):
        raise ValueError
    return word in _ON


def read_e(raw: str) -> str:
    """E: on by four words; all else, empty included, is an explicit off."""
    return "on" if read_a(raw) else "off"


def read_g(raw: str) -> bool:
    """G: off by exactly `0`."""
    return raw != "0"


def read_h(low: int, high: int = v.MAX_INT, scale: int = 1) -> Callable[[str], Any]:
    """H: an integer pulled into its range; anything else says nothing."""

    def read(raw: str) -> Any:
        try:
            return min(max(int(raw), low), high) * scale
        except ValueError:
            return NOTHING

    return read


def read_count(raw: str) -> Any:
    """H without its floor: below 1 says nothing."""
    try:
        return int(raw) if 1 <= int(raw) <= v.MAX_INT else NOTHING
    except ValueError:
        return NOTHING


def read_idle_seconds(raw: str) -> Any:
    """Seconds; not positive or infinite is never, which is 0 here; no number says nothing."""
    try:
        value = float(raw)
    except ValueError:
        return NOTHING
    if math.isnan(value):
        return NOTHING
    return value if 0 < value < math.inf else 0.0


def read_pin_seconds(raw: str) -> Any:
    """Seconds; not positive or NaN is off, which is 0; no number says nothing."""
    try:
        return min(max(0.0, float(raw)), 1e9)  # longer than any process lives
    except ValueError:
        return NOTHING


def _size(least: int, unit: str, plain: type[int] | type[float]) -> Callable[[str], Any]:
    def read(raw: str) -> Any:
        text = raw.strip().upper()
        match = re.fullmatch(rf"(.*?)([KMGT]){unit}", text)
        try:
            value = int(float(match[1]) * v.UNITS[match[2]] if match else plain(text))
        except (ValueError, OverflowError):
            return NOTHING
        return NOTHING if least == 0 and value <= 0 else min(max(value, least), v.MAX_BYTES)

    return read


# I: sizes, K M G T in powers of 1024; what is no size says nothing. The reference reads them in three ways: the bank
# (whole bytes; not positive says nothing), the disk tier and the allocator (at least one byte; the last knows no iB).
read_bank_size = _size(0, "(?:I?B)?", int)
read_disk_size = _size(1, "(?:I?B)?", float)
read_metal_size = _size(1, "B?", float)


def read_prewarm(raw: str) -> Any:
    """J: auto, all, off or a number of GiB; `1` is one GiB, `true` is all, empty says nothing."""
    word = raw.strip().lower()
    if word in ("auto", "all", ""):
        return word or NOTHING
    if word in _ON[1:]:
        return "all"
    if word in (*_OFF, "none"):
        return "off"
    gib = float(re.sub(r"\s*(gib|gb|g)$", "", word))
    if not 0 <= gib < 2**32:
        raise ValueError
    return int(gib * 2**30) or "off"


def read_prewarm_at_load(raw: str) -> Any:
    """D for the whole table or none of it; empty says nothing."""
    return NOTHING if not raw.strip() else "all" if read_d(raw) else "off"


def read_context_copy(raw: str) -> bool:
    """Off by three words, case-sensitive; `no` is on."""
    return raw.strip() not in ("0", "false", "off")


def read_history_policy(raw: str) -> Any:
    """Four words and their aliases in any case; empty says nothing."""
    aliases = {
        "full": "committed",
        "lastwindow": "last_window",
        "window": "last_window",
        "none": "cycle",
        "off": "cycle",
    }
    word = raw.strip().lower().replace("-", "_")
    if not word:
        return NOTHING
    return v.one_of("cycle", "committed", "last_window", "auto").of_text(aliases.get(word, word))


def read_checkpoint_mode(raw: str) -> str:
    """`write-only`, off when `off` or empty, all else is on."""
    word = raw.strip().lower()
    return word if word == "write-only" else "off" if word in ("", "off") else "on"


def read_path(raw: str) -> Any:
    """A path; empty says nothing."""
    return str(Path(raw).expanduser()) if raw.strip() else NOTHING


# What each class of reading takes a text for; "own" is in the function's first line.
CLASSES: dict[str, str] = {
    "A": "on by 1, true, yes, on in any case; all else is off",
    "B": "off by 0, false, no, off in any case; all else is on",
    "C": "on by 1, true, yes, on, enable, enabled, off by 0, false, no, off, disable, disabled; all else is an error",
    "D": "on by 1, true, yes, on, off by 0, false, no, off and empty; all else is an error",
    "E": "on by 1, true, yes, on; all else, empty included, is an explicit off",
    "G": "off by exactly 0; all else is on",
    "H": "an integer, pulled into its range; all else says nothing",
    "I": "bytes with K, M, G or T; all else says nothing",
    "J": "auto, all, off, or a number of GiB (1 is one GiB; true, yes, on are all); all else is an error",
    "own": "a rule of its own",
}


@dataclass(frozen=True, slots=True)
class Legacy:
    """A variable that sets a field.

    Attributes:
        name: Without the prefix MTPLX_.
        field: Dotted name of the field.
        letter: Class of its reading, a key of CLASSES.
        read: Value of its text, or NOTHING; ValueError where the reference raises.
    """

    name: str
    field: str
    letter: str
    read: Callable[[str], Any]


# Of two variables of one field the first that says something counts.
LEGACY: dict[str, Legacy] = {
    row.name: row
    for row in (
        Legacy("COMPILED_GDN", "gdn.compile", "E", read_e),
        Legacy("QWEN4EXP_COMPILE", "gdn.compile", "E", read_e),
        Legacy("FAMILY_CAPTURE_COMMIT", "verify.capture_commit", "C", read_c(False)),
        Legacy("QWEN4_BLOCK_VERIFY", "verify.block", "A", read_a),
        Legacy("CONTEXT_COPY", "decode.context_copy", "own", read_context_copy),
        Legacy("MTP_HISTORY_POLICY", "decode.history_policy", "own", read_history_policy),
        Legacy("MTP_HISTORY_LAST_WINDOW", "decode.history_window", "H", read_h(1)),
        Legacy("MTP_HISTORY_LIVE_RESET_THRESHOLD", "decode.history_reset_rows", "H", read_h(0)),
        Legacy("ASYNC_AR", "decode.async_eval", "A", read_a),
        Legacy("QWEN4_RELAXED_DRAFT_TIES", "decode.relaxed_draft_ties", "A", read_a),
        Legacy("PREFILL_CHUNK_SIZE", "prefill.chunk", "H", read_h(1)),
        Legacy("PREFILL_CHUNK_SIZE_DENSE", "prefill.chunk", "H", read_h(1)),
        Legacy("SMALL_SUFFIX_FUSED_MAX", "prefill.fused_suffix_max", "H", read_h(0)),
        Legacy("NGRAM_RESIDENT", "ple.residency", "A", lambda raw: "resident" if read_a(raw) else "ssd"),
        Legacy("NGRAM_STAGE", "ple.staging", "G", read_g),
        Legacy("NGRAM_PREFETCH", "ple.threads", "G", lambda raw: NOTHING if read_g(raw) else 0),
        Legacy("NGRAM_HOT_MB", "ple.hot_bytes", "H", read_h(0, scale=2**20)),
        Legacy("QWEN4_PLE_PREFILL_LOOKAHEAD", "ple.lookahead", "D", read_d),
        Legacy("QWEN4_PLE_FIRST_GATHER_EARLY", "ple.early_first_gather", "D", read_d),
        Legacy("NGRAM_PREWARM", "ple.prewarm", "J", read_prewarm),
        Legacy("QWEN4_NGRAM_PREWARM_AT_LOAD", "ple.prewarm", "D", read_prewarm_at_load),
        Legacy("NGRAM_ROW_FILE", "ple.row_file", "own", read_path),
        Legacy("SESSION_BANK_MAX_BYTES", "session.max_bytes", "I", read_bank_size),
        Legacy("SESSION_BANK_MAX_ENTRIES", "session.max_entries", "H", read_count),
        Legacy("SESSION_BANK_PER_SESSION_BYTES", "session.per_session_bytes", "I", read_bank_size),
        Legacy("SESSION_BANK_PER_SESSION_MAX_ENTRIES", "session.per_session_entries", "H", read_h(0)),
        Legacy("SESSION_BANK_IDLE_TTL_S", "session.idle_ttl_s", "own", read_idle_seconds),
        Legacy("SESSION_BANK_ACTIVE_PIN_TTL_S", "session.pin_s", "own", read_pin_seconds),
        Legacy("SESSION_NEAR_PREFIX_RESTORE", "session.near_prefix", "B", read_b),
        Legacy("SESSION_BLOCK_PREFIX_RESTORE", "session.block_prefix", "C", read_c(True)),
        Legacy("SESSION_NEAR_PREFIX_MAX_TOKEN_GAP", "session.gap", "H", read_h(0)),
        Legacy("SESSION_NEAR_PREFIX_MIN_MATCH_TOKENS", "session.near_min", "H", read_h(1)),
        Legacy("SESSION_BLOCK_PREFIX_MIN_MATCH_TOKENS", "session.block_min", "H", read_h(1)),
        Legacy("GDN_BOUNDARY_MAX", "session.boundaries", "H", read_h(2, 8)),
        Legacy("GDN_BOUNDARY_TAIL_INTERVAL", "session.tail_interval", "H", read_h(0)),
        Legacy("GDN_BOUNDARY_TAIL_BACKOFF", "session.tail_backoff", "H", read_h(0)),
        Legacy("GDN_BOUNDARY_TAIL_MIN_RUNG", "session.tail_rung", "H", read_h(1)),
        Legacy("SESSION_STORE_ON_PREFILL", "session.store_on_prefill", "B", read_b),
        Legacy("SESSION_STORE_ON_PREFILL_MIN_SUFFIX", "session.store_min_suffix", "H", read_h(1)),
        Legacy("SSD_SESSION_CACHE", "checkpoint.mode", "own", read_checkpoint_mode),
        Legacy("SSD_SESSION_CACHE_DIR", "checkpoint.dir", "own", read_path),
        Legacy("SSD_SESSION_CACHE_MAX_SIZE", "checkpoint.max_bytes", "I", read_disk_size),
        Legacy("SSD_SESSION_CACHE_MIN_PREFIX_TOKENS", "checkpoint.min_tokens", "H", read_h(1)),
        Legacy("SSD_WRITE_BUDGET_PER_HOUR", "checkpoint.hourly_bytes", "I", read_disk_size),
        Legacy("MEMORY_LIMIT_BYTES", "memory.limit", "I", read_metal_size),
        Legacy("MEMORY_BUDGET", "memory.budget", "I", read_bank_size),
        Legacy("ALLOW_SWAP", "memory.allow_overcommit", "A", read_a),
    )
}

_ONE = "one implementation here, chosen by shape"
_FULL_HEAD = "drafts use the trunk's own head; there is no pruned one"
_ALWAYS = "always on"

# Variables that are accepted and change nothing, with the reason. Other MTPLX_* names are not looked at.
NO_EFFECT: dict[str, str] = {
    "AR_PIPELINE": "obsolete: every token is drawn from its logits with the request's own generator",
    **dict.fromkeys(
        (
            "FUSED_HC",
            "FUSED_HC_V3",
            "FUSED_GDN_INPROJ",
            "FUSED_GDN_CONVNORM",
            "FUSED_GDN_STEP",
            "FUSED_GDN_OUT",
            "FUSED_CONVNORM_VERIFY",
            "FUSED_GATE_UP",
            "FUSED_QSA_QKV",
            "FUSED_MOE_DECODE",
            "FUSED_MOE_VERIFY",
            "COMPILED_VERIFY",
            "QWEN4_FIXED_M4_VERIFY",
            "QWEN4_BATCHED_TARGET_DISTRIBUTIONS",
            "BATCH_TARGET_ARRAYS",
            "LAZY_TARGET_DISTRIBUTIONS",
            "QWEN4_COMPILED_MTP_PREPARE",
            "QWEN4_M4_STAGE3",
            "QWEN4_M4_ROUTED_DOWN_REDUCE",
            "QWEN4_M4_ROUTED_DOWN_RESIDUAL_TAIL",
            "QWEN4_M4_ROUTED_GLU",
            "QWEN4_ROUTE_KERNEL",
            "QWEN4_OPDIET",
            "QWEN4_VERIFY_GLUE",
            "QWEN4_VERIFY_GLUE_ITEMS",
            "QSA_GATHER",
            "QSA_GATHER_MIN_CONTEXT",
            "QSA_GATHER_MAX_ROWS",
            "QSA_M4_FUSED_KV_GATHER",
            "QSA_PREFILL",
            "QSA_PREFILL_MIN_CONTEXT",
        ),
        _ONE,
    ),
    **dict.fromkeys(
        ("FRSPEC_DRAFT", "FRSPEC_VOCAB", "QWEN4_DRAFT_K20_PRESCATTER", "QWEN4_SAMPLED_DRAFT_CHAIN"), _FULL_HEAD
    ),
    **dict.fromkeys(
        (
            "SUSTAINED_PREFILL",
            "PREFILL_EVAL_RECURRENT_STATE",
            "SESSION_BANK_SHED_BOUNDARIES",
            "SESSION_BANK_PROTECTED_TERMINAL",
            "SESSION_BOUNDARY_TRUE_RESTORE",
            "STRICT_CLAIMS",
            "QWEN4_PLE_PREFILL_LOOKAHEAD_STRICT",
        ),
        _ALWAYS,
    ),
    "QWEN4_PREFILL_WIDE_CHUNK": "one chunk width: prefill.chunk",
    "MTP_HISTORY_LAST_WINDOW_THRESHOLD": "history policy auto switches at 16,384 prompt tokens",
    "SESSION_PREFIX_BLOCK_SIZE": "a state without boundaries is never cut",
    "SKIP_VERIFY_SNAPSHOT": "a rejected window always needs its snapshot",
    "NAX_VERIFY": "a patch of other model families",
}
