"""What a request may ask for beside its sampling: mode, depth, limits, history; checked, and as the core's options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from qwenmtp.errors import InvalidRequest
from qwenmtp.sampling import ResolvedSampling
from qwenmtp.settings import Settings

Mode = Literal["mtp", "ar"]
Depth = int | Literal["auto"]

MAX_DEPTH = 5
MAX_LOGPROBS = 128
AUTO_WINDOW_PROMPT = 16_384  # tokens from which history policy `auto` keeps a window only, as the reference does


def _refuse(place: str, field: str, value: object, expected: str) -> InvalidRequest:
    return InvalidRequest(f"[{place}] {field} {value!r}, expected {expected}", details={"field": field})


def _is_int(value: object, low: int, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def check_mode(mode: object, depth: object, has_mtp: bool) -> None:
    """Raises InvalidRequest for an unknown mode, a depth out of range, or drafts without a head."""
    if mode not in ("mtp", "ar"):
        raise _refuse("session", "mode", mode, "'mtp' or 'ar'")
    if depth != "auto" and not _is_int(depth, 1, MAX_DEPTH):
        raise _refuse("session", "depth", depth, f"1..{MAX_DEPTH} or 'auto'")
    if mode == "mtp" and not has_mtp:
        raise InvalidRequest("[session] the model has no MTP head, expected mode 'ar'", details={"field": "mode"})


def check_limits(max_tokens: object, logprobs: object, deadline: object) -> None:
    """Raises InvalidRequest for a limit of another type or out of range."""
    if not _is_int(max_tokens, 0):
        raise _refuse("session.generate", "max_tokens", max_tokens, "a non-negative integer")
    if logprobs is not None and not _is_int(logprobs, 0, MAX_LOGPROBS):
        raise _refuse("session.generate", "logprobs", logprobs, f"0..{MAX_LOGPROBS}")
    if deadline is None:
        return
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0 <= deadline < math.inf:
        raise _refuse("session.generate", "deadline", deadline, "seconds from now, a finite number >= 0")


def core_options(
    settings: Settings,
    sampling: ResolvedSampling,
    *,
    mode: Mode,
    depth: Depth,
    n_prompt: int,
    max_tokens: int,
    stops: Sequence[int],
    logprobs: int | None,
    deadline: float | None,
) -> dict[str, Any]:
    """The options of one decoder; every switch of `decode`, `verify` and `prefill` ends here."""
    decode, verify, prefill, s = settings.decode, settings.verify, settings.prefill, sampling
    policy = decode.history_policy
    window = policy == "last_window" or (policy == "auto" and n_prompt >= AUTO_WINDOW_PROMPT)
    return {
        "target": (s.temperature, s.top_p, s.top_k, s.presence_penalty, s.frequency_penalty),
        "draft": (s.draft_temperature, s.draft_top_p, s.draft_top_k, 0.0, 0.0),
        "seed": s.seed,
        "max_tokens": max_tokens,
        "stops": list(stops),
        "speculate": mode == "mtp",
        "depth": MAX_DEPTH if depth == "auto" else depth,
        "auto_depth": depth == "auto",
        "lane": "capture_commit" if verify.capture_commit else "reforward",
        "block_verify": verify.block,
        "context_copy": decode.context_copy,
        "history": "cycle" if policy == "cycle" else "committed",
        "history_window": decode.history_window if window else 0,
        "history_reset_rows": decode.history_reset_rows,
        "relaxed_draft_ties": decode.relaxed_draft_ties,
        "async": decode.async_eval,
        "prefill_chunk": prefill.chunk,
        "fused_suffix": prefill.fused_suffix_max,
        "logprobs": -1 if logprobs is None else logprobs,
        **({} if deadline is None else {"deadline": deadline}),
    }
