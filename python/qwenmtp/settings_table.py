"""The settings: groups of typed fields with their environment names and meaning. Reads nothing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from qwenmtp import settings_values as v


@dataclass(frozen=True, slots=True)
class Spec:
    """One field.

    Attributes:
        name: With its group, as `ple.threads`.
        default: Where no source says anything.
        kind: Its values.
        env: QWENMTP_* name without the prefix.
        doc: Meaning, in a line.
        kill: Whether an explicit off wins over every other source.
    """

    name: str
    default: Any
    kind: v.Kind
    env: str
    doc: str
    kill: bool


def setting(default: Any, kind: v.Kind, env: str, doc: str, *, kill: bool = False) -> Any:
    """A field of a group; its Spec is made from this."""
    return dataclasses.field(default=default, metadata={"spec": (kind, env, doc, kill)})


@dataclass(frozen=True, slots=True)
class GdnSettings:
    """Gated DeltaNet layers."""

    compile: Literal["auto", "on", "off"] = setting(
        "on",
        v.SWITCH,
        "GDN_COMPILE",
        "let MLX compile GDN layers where that saves launches: nowhere so far, and stats.gdn_compiled says why",
        kill=True,
    )


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """The verify forward of a round."""

    capture_commit: bool = setting(
        True,
        v.BOOL,
        "VERIFY_CAPTURE_COMMIT",
        "commit a rejected window from captured rows; off forwards the correction again (other tokens, same law)",
    )
    block: bool = setting(
        False, v.BOOL, "VERIFY_BLOCK", "accept a window's drafts as one block (Sun et al. 2024): other tokens, same law"
    )


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """The token loop."""

    context_copy: bool = setting(
        True, v.BOOL, "CONTEXT_COPY", "draft by copying where the last tokens repeat the context"
    )
    history_policy: Literal["cycle", "committed", "last_window", "auto"] = setting(
        "committed",
        v.one_of("cycle", "committed", "last_window", "auto"),
        "MTP_HISTORY_POLICY",
        "rows the draft head keeps: one round's, all, a prompt's last window, or that from 16,384 prompt tokens on",
    )
    history_window: int = setting(8192, v.integer(1), "MTP_HISTORY_WINDOW", "rows of a prompt that last_window keeps")
    history_reset_rows: int = setting(
        16384,
        v.integer(0),
        "MTP_HISTORY_RESET_ROWS",
        "rows one answer may append before the draft head's history starts anew; 0 is never",
    )
    async_eval: bool = setting(False, v.BOOL, "ASYNC_EVAL", "let the next AR step start before the last one was read")
    relaxed_draft_ties: bool = setting(
        False,
        v.BOOL,
        "RELAXED_DRAFT_TIES",
        "take the draft candidates as partitioned, without proving the order of exact ties",
    )


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """Reading the prompt."""

    chunk: int = setting(2048, v.integer(1), "PREFILL_CHUNK", "rows of one prefill forward")
    fused_suffix_max: int = setting(
        512, v.integer(0), "PREFILL_FUSED_SUFFIX_MAX", "longest suffix of a warm turn that is one forward; 0 is never"
    )


@dataclass(frozen=True, slots=True)
class PleSettings:
    """The n-gram table of the per-layer embedding."""

    residency: Literal["ssd", "resident", "auto"] = setting(
        "ssd",
        v.one_of("ssd", "resident", "auto"),
        "PLE_RESIDENCY",
        "where the table lives; auto is resident if the full context still fits",
    )
    staging: bool = setting(
        True, v.BOOL, "PLE_STAGING", "sort, share, cache and read ahead; off reads row by row, to compare with"
    )
    threads: int = setting(8, v.integer(0, 32), "PLE_THREADS", "threads that read rows; 0 reads on the owner thread")
    hot_bytes: int = setting(256 * 2**20, v.size(), "PLE_HOT_BYTES", "cache of hot rows; 0 is none")
    lookahead: bool = setting(
        True, v.BOOL, "PLE_LOOKAHEAD", "read the rows of the next prefill chunk while the current one computes"
    )
    early_first_gather: bool = setting(
        True, v.BOOL, "PLE_EARLY", "start reading the first chunk's rows when the request arrives"
    )
    prewarm: int | Literal["auto", "off", "all"] = setting(
        "auto",
        v.size("auto", "off", "all"),
        "PLE_PREWARM",
        "bytes of the table to read into the page cache after loading; auto is by the memory plan",
    )
    row_file: str | None = setting(
        None, v.optional(v.PATH), "PLE_ROW_FILE", "interleaved row file, read instead of the planar table"
    )


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Timelines kept in memory."""

    max_bytes: int | Literal["auto"] = setting(
        "auto", v.size("auto"), "SESSION_MAX_BYTES", "all stored states together; auto is by the memory plan"
    )
    max_entries: int = setting(24, v.integer(1), "SESSION_MAX_ENTRIES", "stored states")
    per_session_bytes: int | Literal["auto"] = setting(
        "auto",
        v.size("auto"),
        "SESSION_PER_SESSION_BYTES",
        "stored states of one session; auto is two thirds of all, and at most half of what is free",
    )
    per_session_entries: int = setting(
        3, v.integer(0), "SESSION_PER_SESSION_ENTRIES", "stored states of one named session; 0 is no limit"
    )
    idle_ttl_s: float = setting(
        3600.0, v.SECONDS, "SESSION_IDLE_TTL_S", "a state untouched for so long is dropped; 0 is never"
    )
    pin_s: float = setting(
        600.0, v.SECONDS, "SESSION_PIN_S", "a session touched within this time is evicted last; 0 is off"
    )
    near_prefix: bool = setting(
        True, v.BOOL, "SESSION_NEAR_PREFIX", "reuse a state that the prompt leaves within a few tokens of its end"
    )
    block_prefix: bool = setting(
        True, v.BOOL, "SESSION_BLOCK_PREFIX", "reuse a state from its last boundary before the prompt leaves it"
    )
    gap: int = setting(8, v.integer(0), "SESSION_GAP", "tokens that near_prefix may drop")
    near_min: int = setting(64, v.integer(1), "SESSION_NEAR_MIN", "tokens that near_prefix must keep")
    block_min: int = setting(512, v.integer(1), "SESSION_BLOCK_MIN", "tokens that block_prefix must keep")
    boundaries: int = setting(4, v.integer(0, 8), "SESSION_BOUNDARY_MAX", "boundary records of one state")
    tail_interval: int = setting(
        256,
        v.integer(0),
        "SESSION_BOUNDARY_TAIL_INTERVAL",
        "last prefill chunks of more rows get boundaries inside; 0 is none",
    )
    tail_backoff: int = setting(
        64, v.integer(0), "SESSION_BOUNDARY_TAIL_BACKOFF", "tokens between the last boundary and the prompt's end"
    )
    tail_rung: int = setting(
        1024, v.integer(1), "SESSION_BOUNDARY_TAIL_RUNG", "tokens to the next boundary before that"
    )
    store_on_prefill: bool = setting(
        True, v.BOOL, "SESSION_STORE_ON_PREFILL", "store the prompt's state before the answer"
    )
    store_min_suffix: int = setting(
        1024, v.integer(1), "SESSION_STORE_MIN_SUFFIX", "newly read tokens that make it worth it"
    )
    share_across_depth: bool = setting(
        False, v.BOOL, "SESSION_SHARE_ACROSS_DEPTH", "let sessions of different draft depth reuse each other's states"
    )


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Timelines kept on disk."""

    mode: Literal["on", "off", "write-only"] = setting(
        "on", v.one_of("on", "off", "write-only"), "CHECKPOINT_MODE", "whether states are written to and read from disk"
    )
    dir: str | None = setting(
        None, v.optional(v.PATH), "CHECKPOINT_DIR", "folder of the store; none is the system's cache folder"
    )
    max_bytes: int | Literal["auto"] = setting(
        "auto", v.size("auto"), "CHECKPOINT_MAX_BYTES", "size of the store; auto is by free space"
    )
    min_tokens: int = setting(512, v.integer(1), "CHECKPOINT_MIN_TOKENS", "shorter states are written only on request")
    durability: Literal["barrier", "full", "none"] = setting(
        "barrier", v.one_of("barrier", "full", "none"), "CHECKPOINT_DURABILITY", "how a written file reaches the disk"
    )
    boundaries: int = setting(1, v.integer(0, 8), "CHECKPOINT_BOUNDARIES", "boundary records of one file")
    hourly_bytes: int = setting(
        128 * 2**30, v.size(), "CHECKPOINT_HOURLY_BYTES", "bytes that may be written in an hour, explicit saves apart"
    )
    floor_bytes: int = setting(10 * 2**30, v.size(), "CHECKPOINT_FLOOR_BYTES", "free space that is never used")


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What the engine may take."""

    limit: int | Literal["auto"] = setting(
        "auto",
        v.size("auto"),
        "MEMORY_LIMIT",
        "bytes beyond which MLX waits for memory to be freed, in this process; auto is MLX's own",
    )
    budget: int | None = setting(
        None, v.optional(v.size()), "MEMORY_BUDGET", "plan as if the machine had so much memory"
    )
    allow_overcommit: bool = setting(
        False, v.BOOL, "MEMORY_ALLOW_OVERCOMMIT", "load and run what the plan says does not fit"
    )


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The model itself."""

    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", v.one_of("auto", "float32", "bfloat16"), "DTYPE", "type computed in; auto is the checkpoint's own"
    )


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Where a run leaves its trace."""

    file: str | None = setting(None, v.optional(v.PATH), "TRACE", "Perfetto trace of rounds, forwards, reads and syncs")


GROUPS: dict[str, type] = {
    "model": ModelSettings,
    "gdn": GdnSettings,
    "verify": VerifySettings,
    "decode": DecodeSettings,
    "prefill": PrefillSettings,
    "ple": PleSettings,
    "session": SessionSettings,
    "checkpoint": CheckpointSettings,
    "memory": MemorySettings,
    "trace": TraceSettings,
}

# Every field by its dotted name, in the order of the groups.
FIELDS: dict[str, Spec] = {
    f"{group}.{field.name}": Spec(f"{group}.{field.name}", field.default, *field.metadata["spec"])
    for group, cls in GROUPS.items()
    for field in dataclasses.fields(cls)
}
