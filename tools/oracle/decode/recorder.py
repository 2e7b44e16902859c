"""Runs MTPLX 2.12.2's own loops on the scripted model and turns what happened into records."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import oracle_env  # noqa: F401 - selects the CPU and lets mtplx import
from scripted import SALT, ScriptedRuntime, fold, unpack_hidden

import mtplx.generation as gen  # isort: skip
import mtplx.qwen4_block_verify as block_verify  # isort: skip
from mtplx.sampling import SamplerConfig as Config  # isort: skip

warnings.simplefilter("ignore")
Record = dict[str, Any]
real_rng = np.random.default_rng


def hexd(x: float) -> str:
    return struct.pack(">d", float(x)).hex()


class Tape:
    """A Generator stand-in that forwards to PCG64 and remembers each draw."""

    def __init__(self, seed: Any) -> None:
        self.inner = real_rng(seed)
        self.trace: list[str] = []
        self.margins: list[float] = []

    @property
    def bit_generator(self) -> Any:
        return self.inner.bit_generator

    @property
    def state_hex(self) -> str:
        return f"{self.bit_generator.state['state']['state']:032x}"

    def random(self) -> float:
        self.trace.append("u")
        return float(self.inner.random())

    def choice(self, ids: Any, p: Any = None) -> Any:
        """One token draw; notes how far its uniform lies from the nearest cumulative edge."""
        cdf = np.cumsum(np.asarray(p, dtype=np.float64))
        cdf /= cdf[-1]
        probe = real_rng(0)
        probe.bit_generator.state = self.inner.bit_generator.state
        self.trace.append("c")
        self.margins.append(float(np.min(np.abs(cdf[:-1] - probe.random()))) if len(cdf) > 1 else 1.0)
        return self.inner.choice(ids, p=p)

    def integers(self, *_a: Any, **_k: Any) -> None:
        raise AssertionError("no decode lane of this family draws integers")


class StopNow(RuntimeError):
    """The consumer's own exception."""


def sampler(config: Config) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")
    return {n: getattr(config, n) for n in names}


@contextmanager
def env(law: str | None, **values: str | None) -> Iterator[None]:
    """MTPLX switches for one run.

    MTPLX_QWEN4_BLOCK_VERIFY is frozen at import by its owning module, so a record that sets it still runs the
    standard law; law="block" is what arms the block law.
    """
    saved = {k: os.environ.get(k) for k in values}
    os.environ.update({k: v for k, v in values.items() if v is not None})
    block_verify._configure_for_test(law == "block")
    gen.refresh_env_flags()
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        block_verify._configure_for_test(False)
        gen.refresh_env_flags()


STATS = {"ar": ["generated_tokens", "verify_calls"]}
STATS["mtp"] = STATS["ar"] + [
    "accepted_drafts",
    "rejected_drafts",
    "drafted_tokens",
    "bonus_tokens",
    "correction_tokens",
    "deferred_correction_repairs",
    "accepted_by_depth",
    "drafted_by_depth",
    "finish_stop_origin",
    "context_copy_probes",
    "context_copy_rounds",
    "context_copy_drafted_tokens",
    "context_copy_accepted_blocks",
    "context_copy_accepted_tokens",
    "context_copy_suspensions",
    "context_copy_suspended",
    "context_copy_backoff_tokens",
    "mtp_history_live_resets",
    "target_distribution_materialized_rows",
]
REPETITION_STATS = [
    f"repetition_stop_{name}"
    for name in ("triggered", "reason", "block_tokens", "repeats", "trimmed_tokens", "raw_tokens")
]


def generate(kind: str, runtime: ScriptedRuntime, spec: Record, callback: Any) -> Any:
    shared = {
        "max_tokens": spec["max_tokens"],
        "sampler": Config(**spec["sampler"]),
        "seed": spec["seed"],
        "stop_token_ids": None if spec.get("stop") is None else set(spec["stop"]),
        "token_callback": callback,
        "capture_final_state": spec.get("capture", True),
        "repetition_stop": spec.get("repetition_stop", False),
    }
    if kind == "ar":
        return gen.generate_ar(runtime, list(spec["prompt"]), **shared)
    draft = spec.get("draft_sampler")
    return gen.generate_mtpk(
        runtime,
        list(spec["prompt"]),
        speculative_depth=spec["depth"],
        draft_sampler=None if draft is None else Config(**draft),
        mtp_history_policy=spec.get("history", "committed"),
        verify_strategy="batched",
        **shared,
    )


def history_rows(cache: Any) -> list[list[int]]:
    return [[length, tag, token] for _hash, tag, length, token in cache[0].rows]


def final_of(state: Any, runtime: ScriptedRuntime) -> Record | None:
    if state is None:
        return None
    consumed = list(state.final_trunk_cache[0].tokens)
    h = SALT
    for token in consumed:
        h = fold(h, token)
    row = runtime.trunk_row(h, len(consumed))
    hidden_ok = None
    if state.final_hidden is not None:
        hidden = unpack_hidden(np.asarray(state.final_hidden, dtype=np.float64)[0, -1])
        hidden_ok = hidden == (h, 0, len(consumed))
    history = state.final_committed_mtp_cache
    return {
        "trunk_tokens": consumed,
        "trunk_len": len(consumed),
        "logits_are_row_after_trunk": bool(np.array_equal(np.asarray(state.final_logits).reshape(-1), row)),
        "hidden_is_row_after_trunk": hidden_ok,
        "history": None if history is None else history_rows(history),
        "history_len": None if history is None else len(history[0].rows),
        "safe_to_commit": bool(state.safe_to_commit),
        "generated_token_ids": list(state.generated_token_ids),
        "finish_reason": state.finish_reason,
        "policy": state.mtp_history_policy,
    }


def run(kind: str, spec: Record) -> Record:
    """One orchestration case; `spec` is the record without its result."""
    runtime = ScriptedRuntime(**spec["model"])
    runtime.fail_forward_at = spec.get("fail_forward_at")
    batches: list[list[int]] = []

    def callback(new: Any) -> None:
        batches.append([int(t) for t in new])
        if len(batches) >= (spec.get("raise_in_callback") or float("inf")):
            raise StopNow("cancelled by the caller")

    tapes: list[Tape] = []

    def recorded_rng(seed: Any = None) -> Tape:
        tapes.append(Tape(seed))
        return tapes[-1]

    result: Record = {}
    out = None
    np.random.default_rng = recorded_rng
    try:
        with env(spec.get("law"), **spec.get("env", {})):
            out = generate(kind, runtime, spec, callback)
    except Exception as error:  # the record says which
        result["raises"] = type(error).__name__
    finally:
        np.random.default_rng = real_rng
    tape = tapes[0] if tapes else None
    result |= {"callbacks": batches, "calls": runtime.log, "draw_trace": "".join(tape.trace) if tape else ""}
    if tape and tape.margins:
        result["min_cdf_margin"] = min(tape.margins)
    if out is not None:
        result |= {
            "tokens": [int(t) for t in out.tokens],
            "text": out.text,
            "finish_reason": out.finish_reason,
            "stats": {k: getattr(out.stats, k) for k in STATS[kind] + REPETITION_STATS},
            "final": final_of(out.final_state, runtime),
        }
    return result


class Book:
    """Numbers the records of one file; drops a repeat (same input and result after id, seed and salt)."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.records: list[Record] = []
        self.seen: set[str] = set()
        self.n = 0

    def add(self, kind: str, suffix: str, **spec: Any) -> Record:
        self.n += 1
        record = {"id": f"{self.prefix}-{self.n:04d}-{suffix}", "kind": kind, **spec, "result": run(kind, spec)}
        return self.keep(record)

    def keep(self, record: Record) -> Record:
        key = repr({k: v for k, v in record.items() if k not in ("id", "seed", "salt")})
        if key not in self.seen:
            self.seen.add(key)
            self.records.append(record)
        return record
