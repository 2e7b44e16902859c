"""What a model needs in memory, by part, from headers and a context length. Pure arithmetic; loads nothing."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, fields
from typing import Any, Literal

from qwenmtp.errors import InsufficientMemory, InvalidRequest
from qwenmtp.safetensors_io import ITEM_BYTES
from qwenmtp.weights import ModelFiles

Residency = Literal["ssd", "resident", "auto"]
DType = Literal["float32", "bfloat16"]

KV_STEP = 256  # rows; csrc/state/kv_cache.cpp doubles from here
PREWARM_MARGIN_BYTES = 6 << 30  # for the system and other programs, as the reference leaves
AUTO_BANK_BYTES = 4 << 30  # what `auto` leaves for sessions beside a resident table
HOT_BYTES = 256 << 20
CHUNK = 2048
BOUNDARIES = 4
LAYERS_AHEAD = 13  # MLX's CPU back end allocates the outputs of 100 nodes, 8 a layer, before the first of them has run


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by part for one session of `context` tokens.

    Attributes:
        context: Tokens of the session, prompt and answer.
        dtype: Compute type of activations and state.
        residency: Where the n-gram table is read from: `ssd` or `resident`.
        weights: Everything loaded but the table, as it lies in memory.
        table: The n-gram table in memory; 0 when it streams.
        hot_rows: The slab of hot rows and what is staged, when it streams.
        kv: Keys, values and indexer keys of every attention layer, MTP head included, at their buffers' capacity.
        recurrent: Convolution tails and delta states, and the last row's logits and hidden.
        boundaries: Recurrent records for partial restores.
        transients: The most that one forward adds while it runs; an upper estimate.
        budget: What may be used, in bytes.
    """

    context: int
    dtype: DType
    residency: Literal["ssd", "resident"]
    weights: int
    table: int
    hot_rows: int
    kv: int
    recurrent: int
    boundaries: int
    transients: int
    budget: int

    @property
    def total(self) -> int:
        """Bytes held between forwards."""
        return self.weights + self.table + self.hot_rows + self.kv + self.recurrent + self.boundaries

    @property
    def peak(self) -> int:
        """Bytes at the worst moment of a forward."""
        return self.total + self.transients

    @property
    def fits(self) -> bool:
        """Whether the peak stays within the budget."""
        return self.peak <= self.budget

    def to_json(self) -> dict[str, Any]:
        """All fields, total, peak and fits, JSON-ready."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return own | {"total": self.total, "peak": self.peak, "fits": self.fits}

    def check(self) -> None:
        """Refuse what does not fit.

        Raises:
            InsufficientMemory: `details` is the plan.
        """
        if not self.fits:
            raise InsufficientMemory(
                f"[plan.check] a context of {self.context} tokens with the n-gram table "
                f"{'on disk' if self.residency == 'ssd' else 'in memory'} needs {self.peak} bytes, "
                f"expected at most {self.budget}",
                details=self.to_json(),
            )


def physical_budget() -> int:
    """Bytes that a process may plan with: three quarters of this machine's memory on macOS, where Metal draws the line,
    nine tenths elsewhere."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return physical * 3 // 4 if sys.platform == "darwin" else physical * 9 // 10


def memory_plan(
    files: ModelFiles,
    *,
    context: int,
    dtype: DType,
    residency: Residency = "ssd",
    budget: int | None = None,
    speculate: bool = True,
    hot_bytes: int = HOT_BYTES,
    chunk: int = CHUNK,
    boundaries: int = BOUNDARIES,
    device: str = "gpu",
) -> MemoryPlan:
    """The memory plan of one session.

    Args:
        files: The model, from `open_model_files`.
        context: Tokens of the session, 1 to the model's context.
        dtype: Compute type.
        residency: `auto` keeps the table in memory only if that leaves room for the full context and 4 GiB of sessions.
        budget: Bytes that may be used; None takes `physical_budget()`.
        speculate: Whether the session drafts, and so keeps an MTP history.
        hot_bytes: Slab of hot rows.
        chunk: Rows of a prefill forward; 0 forwards a prompt whole.
        boundaries: Recurrent records kept for partial restores.
        device: `cpu` or another; the CPU's forwards hold more at a time.

    Raises:
        InvalidRequest: The context is out of range.
    """
    g = files.geometry
    if not 1 <= context <= g["max_position"]:
        raise InvalidRequest(f"[plan.memory] context of {context} tokens, expected 1..{g['max_position']}")
    limit = physical_budget() if budget is None else budget
    item = 4 if dtype == "float32" else 2

    def plan(tokens: int, resident: bool) -> MemoryPlan:
        recurrent = _recurrent_bytes(g, item)
        tip = (g["vocab_size"] + _wide(g)) * item
        return MemoryPlan(
            context=tokens,
            dtype=dtype,
            residency="resident" if resident else "ssd",
            weights=_weight_bytes(files, item),
            table=table_bytes(files) if resident else 0,
            hot_rows=0 if resident else min(hot_bytes, _hot_most(files)) + _staged_bytes(files, chunk or tokens),
            kv=_kv_bytes(g, tokens, item, speculate),
            recurrent=recurrent + tip,
            boundaries=boundaries * (recurrent + _wide(g) * item),
            transients=_transient_bytes(g, tokens, chunk or tokens, item, speculate=speculate, ahead=device == "cpu"),
            budget=limit,
        )

    if residency == "auto":
        full = plan(g["max_position"], resident=True)
        return plan(context, resident=full.peak + AUTO_BANK_BYTES <= limit)
    return plan(context, resident=residency == "resident")


def prewarm_bytes(plan: MemoryPlan, table: int, wish: int | str) -> int:
    """Bytes of a streamed table to read into the page cache: as wished (`all`, `off` or a number), or for `auto` what
    the budget leaves free beside `plan` and a margin."""
    free = plan.budget - plan.peak - PREWARM_MARGIN_BYTES
    wanted = {"off": 0, "all": table, "auto": free}.get(wish, wish) if isinstance(wish, str) else wish
    return 0 if plan.table else max(0, min(int(wanted), table))


def table_bytes(files: ModelFiles) -> int:
    """Bytes of the n-gram table as it is stored, which is what a resident one occupies."""
    return sum(_bytes(dtype, shape) for name, dtype, shape, *_ in files.tensors if _is_table(name))


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * ITEM_BYTES[dtype]


def _is_table(name: str) -> bool:
    return name.startswith("ngram.") or ".ngram_embedding." in name


def _wide(g: dict[str, Any]) -> int:
    return int(g["hc_count"] * g["hidden_size"])


def _weight_bytes(files: ModelFiles, item: int) -> int:
    """Matrices stay as stored where the compute type is as wide, vectors take the compute type; codes stay packed; the
    integer buffers and the vision tower are not kept."""
    total = 0
    for name, dtype, shape, *_ in files.tensors:
        if _is_table(name) or dtype == "I64" or "visual." in name or name.startswith("vision_tower."):
            continue
        vector = len(shape) == 1 or "conv" in name
        if dtype in ("BF16", "F16", "F32"):
            total += math.prod(shape) * item if vector else min(math.prod(shape) * item, _bytes(dtype, shape))
        else:
            total += _bytes(dtype, shape)
    return total


def _table_rows(files: ModelFiles) -> int:
    return sum(shape[0] for name, _, shape, *_ in files.tensors if _is_table(name) and name.endswith(".weight"))


def _hot_most(files: ModelFiles) -> int:
    """What a slab for every row of the table takes: two slots a row, ten bytes of tag and clock each."""
    return 2 * (table_bytes(files) + 10 * _table_rows(files))


def _staged_bytes(files: ModelFiles, chunk: int) -> int:
    """The records of the chunk in work and of the next one, which is being read."""
    rows = _table_rows(files)
    if not rows:
        return 0
    g = files.geometry
    record = table_bytes(files) // rows
    return int(2 * chunk * (g["ngram_size"] - 1) * g["heads_per_ngram"] * record)


def _kv_bytes(g: dict[str, Any], context: int, item: int, speculate: bool) -> int:
    capacity = KV_STEP
    while capacity < context:
        capacity *= 2
    row = 2 * g["n_kv_heads"] * g["head_dim"] + g["index_dim"]
    layers = sum(g["full_attention"]) + int(speculate)
    return int(layers * (capacity * row + capacity // g["index_ratio"] * g["index_dim"]) * item)


def _recurrent_bytes(g: dict[str, Any], item: int) -> int:
    channels = 2 * g["gdn_key_heads"] * g["gdn_key_dim"] + g["gdn_value_heads"] * g["gdn_value_dim"]
    delta = g["gdn_value_heads"] * g["gdn_value_dim"] * g["gdn_key_dim"] * 4
    gdn = (len(g["full_attention"]) - sum(g["full_attention"])) * ((g["gdn_conv_kernel"] - 1) * channels * item + delta)
    return int(gdn + len(g["ple_layers"]) * (g["ple_conv_kernel"] - 1) * g["ngram_size"] * _wide(g) * item)


def _transient_bytes(g: dict[str, Any], context: int, chunk: int, item: int, *, speculate: bool, ahead: bool) -> int:
    """One layer's intermediates for a chunk: residual streams and their mixes, and the larger of its mixer (in float32)
    and its experts; where nodes are allocated `ahead`, all that these put out. Beside them one layer's keys and
    values in float32, the copy of a growing cache, and logits.
    """
    rows = min(chunk, context)
    channels = 2 * g["gdn_key_heads"] * g["gdn_key_dim"] + g["gdn_value_heads"] * g["gdn_value_dim"]
    streams = 6 * rows * _wide(g) * item
    mixer = 4 * rows * max(channels, 2 * g["n_heads"] * g["head_dim"]) * 4
    experts = rows * g["top_k"] * (3 * g["expert_dim"] + 2 * g["hidden_size"]) * item
    forward = streams + max(mixer, experts)
    if ahead:
        forward = max(forward, rows * _outputs_ahead(g, channels, speculate) * item)
    keys = 4 * context * g["n_kv_heads"] * g["head_dim"] * 4
    return int(forward + keys + 8 * g["vocab_size"] * 4)


def _outputs_ahead(g: dict[str, Any], channels: int, speculate: bool) -> int:
    """Values a row that nodes put out which are allocated together: of each layer in flight its streams and mixes,
    projections, the mixer's inputs and output, the experts' sum; the MTP head's layer; n-gram rows and what becomes of
    them; the last mix."""
    wide, hidden = _wide(g), g["hidden_size"]
    n_layers, n_attention = len(g["full_attention"]), sum(g["full_attention"])
    both = 2 * (wide + hidden) + 2 * hidden
    gdn = both + channels + 2 * g["gdn_value_heads"] * g["gdn_value_dim"]
    attention = (
        both + 4 * (g["n_heads"] + g["n_kv_heads"]) * g["head_dim"] + 2 * (g["index_heads"] + 1) * g["index_dim"]
    )
    layers = ((n_layers - n_attention) * gdn + n_attention * attention) * min(1.0, LAYERS_AHEAD / n_layers)
    ngram = len(g["ple_layers"]) * (2 * wide + hidden + g["ple_dim"])
    return int(layers + speculate * attention + ngram + wide + hidden)
