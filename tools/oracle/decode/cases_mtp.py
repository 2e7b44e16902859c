"""MTP fixtures: lanes, depths, samplers, drafts, limits, stops, gates, histories, interruptions, resume, block law."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
from cases_ar import SAMPLERS
from recorder import Book, Config, Record, env, gen, history_rows, run, sampler
from scripted import SALT, ScriptedRuntime, fold, unpack_hidden

LANES = {
    "capture": {"MTPLX_CONTEXT_COPY": "0", "MTPLX_FAMILY_CAPTURE_COMMIT": "1"},
    "reforward": {"MTPLX_CONTEXT_COPY": "0", "MTPLX_FAMILY_CAPTURE_COMMIT": "0"},
}
DRAFTS = [None, Config(0.7, 0.95, 20), Config(0.0, 0.95, 20)]
BLOCK = {"MTPLX_QWEN4_BLOCK_VERIFY": "1", "MTPLX_BATCH_TARGET_ARRAYS": "1"}
GATES: dict[str, dict[str, str]] = {
    "none": {},
    "batch_arrays": {"MTPLX_BATCH_TARGET_ARRAYS": "1"},
    "batch_dists": {"MTPLX_BATCH_TARGET_DISTS": "1"},
    "lazy_dists": {"MTPLX_LAZY_TARGET_DISTRIBUTIONS": "1"},
    "lazy_history": {"MTPLX_LAZY_MTP_HISTORY_APPEND": "1"},
    "lazy_logits": {"MTPLX_LAZY_VERIFY_LOGITS": "1"},
    "no_greedy_chain": {"MTPLX_GREEDY_DRAFT_CHAIN": "0"},
    "no_batched_greedy": {"MTPLX_BATCHED_GREEDY_ACCEPT": "0"},
    "defer_repair": {"MTPLX_DEFER_REPAIR_EVAL": "1"},
    "block_verify": BLOCK,  # the switch alone changes nothing: recorder.env
    "omit_bonus": {"MTPLX_OMIT_SPECULATIVE_BONUS": "1"},
    "lazy_bonus": {"MTPLX_LAZY_BONUS_VERIFY": "1"},
}


def hash_model(vocab: int = 32, amp: float = 0.25, **more: Any) -> Record:
    return {"vocab": vocab, "mode": "hash", "amp": amp} | more


def draft_sampler(config: Config | None) -> Record | None:
    return None if config is None else sampler(config)


def free_runs(book: Book) -> None:
    table = itertools.product(LANES, (1, 2, 3), SAMPLERS, DRAFTS, (0.25, 1.0))
    for lane, depth, config, draft, amp in table:
        if config.temperature <= 0 and draft is not None and draft.temperature > 0 and amp == 1.0:
            continue
        book.add(
            "mtp", lane, model=hash_model(amp=amp), prompt=[3, 1, 4, 1, 5], max_tokens=20, sampler=sampler(config),
            draft_sampler=draft_sampler(draft), depth=depth, seed=1001 + book.n, stop=[], env=LANES[lane],
        )  # fmt: skip
    for lane, depth, config, mode in itertools.product(LANES, (4, 5), SAMPLERS[:2] + SAMPLERS[5:], ("hash", "ties")):
        book.add(
            "mtp", f"deep-{lane}", model={"vocab": 24, "mode": mode, "amp": 0.25}, prompt=[2, 7], max_tokens=24,
            sampler=sampler(config), depth=depth, seed=1001 + book.n, stop=[], env=LANES[lane],
        )  # fmt: skip


def limits_and_stops(book: Book) -> None:
    """Limits 0..8, and a stop at every token of a free run."""
    table = itertools.product(LANES, (1, 2, 3), (SAMPLERS[0], SAMPLERS[5], SAMPLERS[6]), (0.5, 0.1))
    for lane, depth, config, amp in table:
        base: Record = {
            "model": hash_model(24, amp), "prompt": [2, 7, 1], "sampler": sampler(config), "depth": depth, "seed": 77,
            "env": LANES[lane],
        }  # fmt: skip
        for limit in range(9):
            book.add("mtp", "limit", **base, max_tokens=limit, stop=[])
        free = run("mtp", {**base, "max_tokens": 9, "stop": []})["tokens"]
        for position, token in enumerate(free):
            book.add("mtp", f"stop{position}", **base, max_tokens=9, stop=[token])
        book.add("mtp", "stop_pair", **base, max_tokens=9, stop=sorted({free[4], free[7]}))


def penalties(book: Book) -> None:
    """Strong ones on a tiny vocabulary: the in-block draft prefix matters."""
    for lane, depth, t, seed in itertools.product(LANES, (2, 3), (0.0, 1.0), (1, 2, 3, 4)):
        book.add(
            "mtp", "penalty", model=hash_model(6), prompt=[2, 5, 1], max_tokens=18,
            sampler=sampler(Config(t, 0.95, 20, 1.5, 0.6)), draft_sampler=sampler(Config(t, 0.95, 20)), depth=depth,
            seed=seed, stop=[], env=LANES[lane],
        )  # fmt: skip


def gates(book: Book) -> None:
    for (name, extra), lane, config in itertools.product(GATES.items(), LANES, (SAMPLERS[1], SAMPLERS[5])):
        book.add(
            "mtp", f"gate-{name}", model=hash_model(), prompt=[3, 1, 4, 1, 5], max_tokens=24, sampler=sampler(config),
            depth=3, seed=4242, stop=[], env={**LANES[lane], **extra},
        )  # fmt: skip


def histories(book: Book) -> None:
    for history, prompt, lane in itertools.product(
        ("cycle", "committed", "last_window"), ([5], [5, 6], list(range(1, 18))), LANES
    ):
        book.add(
            "mtp", f"history-{history}", model=hash_model(), prompt=prompt, max_tokens=10, sampler=sampler(SAMPLERS[1]),
            depth=3, seed=9, stop=[], history=history, env=LANES[lane],
        )  # fmt: skip
    for threshold, lane, depth in itertools.product((1, 3, 8, 12), LANES, (1, 3)):
        book.add(
            "mtp", "live-reset", model=hash_model(), prompt=[3, 1, 4], max_tokens=40, sampler=sampler(SAMPLERS[1]),
            depth=depth, seed=21, stop=[],
            env={**LANES[lane], "MTPLX_MTP_HISTORY_LIVE_RESET_THRESHOLD": str(threshold)},
        )  # fmt: skip


def interruptions(book: Book) -> None:
    """The consumer raises in each callback; a forward fails at each place it can."""
    for after, lane, depth, config in itertools.product(range(1, 8), LANES, (1, 3), (SAMPLERS[1], SAMPLERS[5])):
        book.add(
            "mtp", "cancel", model=hash_model(), prompt=[3, 1, 4], max_tokens=12, sampler=sampler(config), depth=depth,
            seed=21, stop=[], raise_in_callback=after, env=LANES[lane],
        )  # fmt: skip
    for lane, depth, config in itertools.product(LANES, (1, 3), (SAMPLERS[0], SAMPLERS[5])):
        base: Record = {
            "model": hash_model(), "prompt": [3, 1, 4], "max_tokens": 6, "sampler": sampler(config), "depth": depth,
            "seed": 21, "stop": [], "env": LANES[lane],
        }  # fmt: skip
        calls = run("mtp", base)["calls"]
        for at, call in enumerate(calls):
            if call[0] == "trunk":
                book.add("mtp", "fail", **base, fail_forward_at=at)


def resumes(book: Book) -> None:
    """Next turn: extend a captured final state by a suffix (no model sampling)."""
    table = itertools.product(LANES, (1, 2, 5, 9), (1, 2, 3, 6, 9), (512, 0, 3), (1, 3))
    for lane, limit, length, fused, depth in table:
        book.n += 1
        runtime = ScriptedRuntime(vocab=32, mode="hash", amp=0.25)
        prompt, suffix = [9, 11, 7], [(5 * i + 3) % 32 for i in range(length)]
        with env(None, **LANES[lane], MTPLX_SMALL_SUFFIX_FUSED_MAX=str(fused)):
            out = gen.generate_mtpk(
                runtime, prompt, max_tokens=limit, sampler=Config(1.0, 0.95, 20), speculative_depth=depth, seed=book.n,
                stop_token_ids=set(), capture_final_state=True, mtp_history_policy="committed",
                verify_strategy="batched",
            )  # fmt: skip
            state = out.final_state
            prefix = prompt + list(state.generated_token_ids)
            runtime.log.clear()
            restored = SimpleNamespace(
                cache=state.final_trunk_cache,
                hidden=state.final_hidden,
                mtp_history_cache=state.final_committed_mtp_cache,
                entry=SimpleNamespace(prefix_len=len(prefix)),
            )
            logits, hidden, *_ = gen._prefill_restored_prompt_suffix(
                runtime, restored, suffix, base_hidden_variant="post_norm", mtp_hidden_variant="post_norm",
                mtp_history_policy="committed", cached_tokens=len(prefix), tokens_total=len(prefix) + length,
            )  # fmt: skip
        h, total = SALT, len(prefix) + length
        for token in prefix + suffix:
            h = fold(h, token)
        assert np.array_equal(np.asarray(logits).reshape(-1), runtime.trunk_row(h, total))
        assert unpack_hidden(np.asarray(hidden, dtype=np.float64)[0, -1]) == (h, 0, total)
        book.keep({
            "id": f"resume-{book.n:04d}", "kind": "resume", "prefix": prefix, "suffix": suffix, "fused_max": fused,
            "calls": runtime.log, "trunk_tokens": list(state.final_trunk_cache[0].tokens),
            "history": history_rows(state.final_committed_mtp_cache),
        })  # fmt: skip


def block_law(book: Book) -> None:
    """`law: block`: block verification really armed; most of these streams differ from the standard law's."""
    drafts = (None, Config(0.7, 0.95, 20), Config(1.4, 1.0, 20), Config(0.0, 0.95, 20))
    table = itertools.product(LANES, (2, 3), ((5, 0.5), (5, 2.0), (12, 1.0)), drafts, range(4))
    for lane, depth, (vocab, amp), draft, seed in table:
        book.add(
            "mtp", f"block-{lane}", model=hash_model(vocab, amp), prompt=[2, 1, 4], max_tokens=18 if vocab == 5 else 60,
            sampler=sampler(Config(1.0, 0.97, 20)), draft_sampler=draft_sampler(draft), depth=depth, seed=seed, stop=[],
            law="block", env={**LANES[lane], **BLOCK},
        )  # fmt: skip


def build_mtp() -> list[Record]:
    book = Book("mtp")
    for part in (free_runs, limits_and_stops, penalties, gates, histories, interruptions):
        part(book)
    return book.records


def build_resume() -> list[Record]:
    book = Book("resume")
    resumes(book)
    return book.records


def build_block() -> list[Record]:
    book = Book("block")
    block_law(book)
    return book.records
