"""Sampler fixtures: target and draft readers, batched rows, accept and residual chains, boundaries, bad rows."""

from __future__ import annotations

from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
from recorder import Book, Config, Record, Tape, hexd, real_rng, sampler
from scripted_math import logits_row

import mtplx.fast_sampling as fast  # isort: skip
import mtplx.generation as gen  # isort: skip
import mtplx.sampling as samp  # isort: skip

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
FLASH_NEXT = 248_320  # the released vocabulary
CONFIGS = [
    Config(0.6, 0.95, 20),
    Config(1.0, 0.95, 20),
    Config(0.7, 0.95, 20),
    Config(0.5, 1.0, 2),
    Config(1.0, 1.0, 20),
    Config(1.0, 0.0, 20),
    Config(1.0, 0.95, 0),
    Config(0.8, 1.0, 0),
    Config(1.0, 0.5, 5),
    Config(0.6, 0.05, 20),
    Config(1.3, 0.999, 40),
    Config(1.0, 0.9, 1),
    Config(0.01, 0.95, 20),
    Config(0.0, 0.95, 20),
    Config(-1.0, 0.95, 20),
    Config(1.0, 0.95, 10**6),
    Config(1.0, -0.5, 7),
    Config(1.0, 1.5, 7),
    Config(5.0, 0.95, 20),
    Config(1.0, 0.95, -4),
]


def support(dist: Any) -> tuple[Any, Any]:
    if dist is None:
        return None, None
    if isinstance(dist, samp.SparseDistribution):
        return dist.token_ids, dist.probs
    ids = np.flatnonzero(dist > 0)
    return ids, np.asarray(dist)[ids]


def support_fields(ids: Any, probs: Any) -> Record:
    shown = ids is not None and len(ids) <= 64
    return {
        "support_ids": [int(i) for i in ids] if shown else None,
        "support_probs_hex": [hexd(p) for p in probs] if shown else None,
    }


def tape_fields(tape: Tape) -> Record:
    return {
        "draws": len(tape.trace),
        "final_state": tape.state_hex,
        "min_cdf_margin": min(tape.margins) if tape.margins else None,
    }


def target(
    case: int, rule: str, vocab: int, scale: float, dtype: str, config: Config, counts: Any = None, overlay: Any = None
) -> Record:
    """Twelve successive draws from one row."""
    row = mx.array(logits_row(rule, case, vocab, scale)).astype(DTYPES[dtype])
    tape, tokens, dist = Tape(case), [], None
    for _ in range(12):
        token, dist = gen._sample_from_logits(row, config, tape, token_counts=counts, penalty_overlay=overlay)
        tokens.append(int(token))
    ids, probs = support(dist)
    sparse = isinstance(dist, samp.SparseDistribution)
    return {
        "id": f"sampler-{case:05d}",
        "kind": "target",
        "logits": {"rule": rule, "case": case, "vocab": vocab, "scale": scale, "dtype": dtype},
        "sampler": sampler(config),
        "token_counts": counts,
        "overlay": overlay,
        "seed": case,
        "tokens": tokens,
        **tape_fields(tape),
        "distribution": None if dist is None else "sparse" if sparse else "dense",
        "support_size": None if ids is None else len(ids),
        **support_fields(ids, probs),
    }


def plain_rows(book: Book) -> None:
    case = 0
    shapes = [("hash", 64, 1.0), ("hash", 1000, 2.0), ("ties", 64, 1.0), ("ties", 512, 1.0), ("hash", 7, 1.0)]
    shapes += [("hash", 4096, 3.0), ("ties", 21, 0.5), ("hash", 1, 1.0), ("hash", 129, 4.0), ("hash", 320, 1.5)]
    shapes += [("ties", 96, 2.0), ("hash", 40, 8.0)]
    for config, (rule, vocab, scale) in product(CONFIGS, shapes):
        for dtype in ("float32",) if vocab > 64 else ("float32", "bfloat16", "float16"):
            case += 1
            book.keep(target(case, rule, vocab, scale, dtype, config))


def penalised_rows(book: Book) -> None:
    case = 1000
    pens = [(0.5, 0.0), (0.0, 0.5), (1.5, 0.7), (-1.0, 0.3), (9.0, -9.0), (2.0, 2.0)]
    dtypes = [("hash", "float32"), ("ties", "float32"), ("hash", "bfloat16"), ("hash", "float16"), ("ties", "bfloat16")]
    counts = {3: 1, 17: 4, 40: 2, 63: 7, 5: 0}
    for (presence, frequency), t, (rule, dtype), top_k in product(pens, (0.0, 0.6, 1.0), dtypes, (20, 0)):
        case += 1
        book.keep(target(case, rule, 64, 1.0, dtype, Config(t, 0.95, top_k, presence, frequency), counts))
    overlays: list[dict[int, float]] = [{9: 3.0}, {9: -1.0e4}, {0: 16.0, 1: 16.0, 2: 2.5}]
    for overlay, t, few, dtype in product(overlays, (0.0, 1.0), (None, {9: 2, 11: 1}), ("float32", "bfloat16")):
        case += 1
        book.keep(target(case, "hash", 64, 1.0, dtype, Config(t, 0.95, 20, 0.4, 0.2), few, overlay))


def rounded_penalties(book: Book) -> None:
    """Amounts that a narrow row cannot hold, taken off its best tokens: which value is rounded decides."""
    case = 1500
    amounts = ((0.3, 0.1), (-0.7, -0.13), (0.17, 0.29))
    for (presence, frequency), t, dtype, scale, _ in product(
        amounts, (0.0, 0.6, 1.0), ("bfloat16", "float16"), (1.0, 4.0), range(2)
    ):
        case += 1
        best = np.argsort(-logits_row("hash", case, 64, scale), kind="stable")[:6]
        counts = {int(token): i + 1 for i, token in enumerate(best)}
        book.keep(target(case, "hash", 64, scale, dtype, Config(t, 0.95, 20, presence, frequency), counts))


def released_vocabulary(book: Book) -> None:
    """Rows of 248,320. A 16-bit hash repeats each value about four times here, and bfloat16 about five hundred."""
    case = 20_000
    configs = [
        Config(0.6, 0.95, 20),
        Config(1.0, 0.95, 20),
        Config(1.0, 1.0, 20),
        Config(0.8, 0.5, 7),
        Config(0.0, 0.95, 20),
        Config(1.0, 0.95, 1),
    ]
    shapes = [("hash", 1.0), ("hash", 4096.0), ("hash", 8192.0), ("ties", 1.0), ("ties", 4.0)]
    for config, (rule, scale), dtype in product(configs, shapes, ("float32", "bfloat16", "float16")):
        if dtype == "float16" and scale > 4096.0:
            continue  # beyond its range
        case += 1
        book.keep(target(case, rule, FLASH_NEXT, scale, dtype, config))
    for config in (Config(1.0, 0.95, 0), Config(0.7, 1.0, 0)):  # dense
        for rule, scale, dtype in product(("hash",), (4096.0, 16384.0), ("float32", "bfloat16")):
            case += 1
            book.keep(target(case, rule, FLASH_NEXT, scale, dtype, config))
    for config, dtype, scale in product(
        (Config(0.6, 0.95, 20, 1.2, 0.3), Config(0.0, 0.95, 20, 2.0, 1.0)), ("float32", "bfloat16"), (1.0, 4096.0)
    ):
        case += 1
        best = np.argsort(-logits_row("hash", case, FLASH_NEXT, scale), kind="stable")[:6]
        counts = {int(token): i + 1 for i, token in enumerate(best)}
        book.keep(target(case, "hash", FLASH_NEXT, scale, dtype, config, counts))
    for config, scale in product(configs[:4], (4096.0, 8192.0)):
        case += 1
        book.keep(draft(case, "fixed", True, "hash", FLASH_NEXT, config, scale))


def draft(case: int, reader: str, need: bool, rule: str, vocab: int, config: Config, scale: float = 1.0) -> Record:
    row = mx.array(logits_row(rule, case, vocab, scale))
    tape, tokens, dist = Tape(case), [], None
    for _ in range(12):
        if reader == "fixed":
            token, dist = gen._sample_draft_from_logits(row, config, tape, need_distribution=need)
        else:
            dist = fast.sparse_distribution_from_mlx_logits_relaxed_ties(row, config)
            token = samp.sample_from_distribution(dist, tape)
        tokens.append(int(token))
    ids, probs = support(dist)
    return {
        "id": f"sampler-{case:05d}",
        "kind": f"draft_{reader}",
        "need_distribution": need,
        "logits": {"rule": rule, "case": case, "vocab": vocab, "scale": scale, "dtype": "float32"},
        "sampler": sampler(config),
        "seed": case,
        "tokens": tokens,
        **tape_fields(tape),
        **support_fields(ids, probs),
    }


def draft_rows(book: Book) -> None:
    case = 5000
    configs = (Config(0.7, 0.95, 20), Config(1.0, 1.0, 20), Config(0.0, 0.95, 20), Config(1.0, 0.5, 3))
    for (reader, need), config, (rule, vocab) in product(
        (("fixed", True), ("fixed", False), ("relaxed", True)),
        configs,
        (("hash", 64), ("hash", 1000), ("ties", 64), ("hash", 5)),
    ):
        if reader == "relaxed" and (config.temperature <= 0 or rule == "ties"):
            continue  # which of several equal values enters is the partition's choice
        case += 1
        book.keep(draft(case, reader, need, rule, vocab, config))


def batched(case: int, rule: str, vocab: int, config: Config, scale: float = 1.0) -> Record:
    cases = [case * 10 + r for r in range(4)]
    rows = mx.array(np.stack([logits_row(rule, c, vocab, scale) for c in cases]))
    batch = fast.batched_sparse_distributions_from_mlx_logits(rows, config)
    serial = [gen._distribution_from_mlx_logits(rows[r], config) for r in range(4)]
    tape, other = Tape(case), Tape(case)
    order = [r % 4 for r in range(12)]
    tokens = [int(batch.sample(r, tape)) for r in order]
    assert tokens == [int(samp.sample_from_distribution(serial[r], other)) for r in order]
    ulp = 0.0
    for r in range(4):
        d = batch.to_distribution(r)
        assert list(d.token_ids) == list(serial[r].token_ids)
        ulp = max(ulp, float(np.max(np.abs(d.probs - serial[r].probs))))
    return {
        "id": f"sampler-{case:05d}",
        "kind": "batched_rows",
        "logits": {"rule": rule, "row_cases": cases, "vocab": vocab, "scale": scale, "dtype": "float32"},
        "sampler": sampler(config),
        "seed": case,
        "rows_sampled": order,
        "tokens": tokens,
        "draws": len(tape.trace),
        "max_abs_diff_to_serial": ulp,
    }


def batched_rows(book: Book) -> None:
    case = 6000
    configs = (Config(0.6, 0.95, 20), Config(1.0, 0.95, 20), Config(1.0, 1.0, 20), Config(1.0, 0.5, 3))
    shapes = (("hash", 64, 1.0), ("hash", 1000, 1.0), ("ties", 64, 1.0), ("hash", FLASH_NEXT, 4096.0))
    for config, (rule, vocab, scale) in product(configs, shapes):
        case += 1
        book.keep(batched(case, rule, vocab, config, scale))


def accept_chain(case: int, target: Config, draft: Config, similarity: float) -> Record:
    base = logits_row("hash", case, 48)
    other = base + np.float32(similarity) * logits_row("hash", case + 500, 48)
    p = gen._distribution_from_mlx_logits(mx.array(base), target)
    point = int(np.argmax(other))
    sampled = draft.temperature > 0
    q = (
        gen._distribution_from_mlx_logits(mx.array(other), draft)
        if sampled
        else samp.SparseDistribution.one_hot(point, 48)
    )
    tape, steps = Tape(case), []
    for _ in range(10):
        token = int(samp.sample_from_distribution(q, tape)) if sampled else point
        a = samp.acceptance_probability(p, q, token)
        u = tape.random()
        ok = u <= a
        emitted = token if ok else int(samp.sample_from_distribution(samp.residual_distribution(p, q), tape))
        steps.append([token, hexd(a), hexd(u), int(ok), emitted])
    return {
        "id": f"sampler-{case:05d}",
        "kind": "accept_residual",
        "target_logits": {"rule": "hash", "case": case, "vocab": 48},
        "draft_logits": {"target_plus": similarity, "rule": "hash", "case": case + 500},
        "target_sampler": sampler(target),
        "draft_sampler": sampler(draft),
        "seed": case,
        "steps": steps,
        "trace": "".join(tape.trace),
        **tape_fields(tape),
    }


def accept_chains(book: Book) -> None:
    case = 7000
    pairs = [
        (Config(1.0, 0.95, 20), Config(0.7, 0.95, 20)),
        (Config(0.6, 0.95, 20), Config(0.6, 0.95, 20)),
        (Config(1.0, 1.0, 0), Config(1.0, 0.95, 20)),
        (Config(1.0, 0.95, 20), Config(0.0, 0.95, 20)),
        (Config(0.8, 0.9, 4), Config(1.2, 1.0, 8)),
        (Config(0.7, 0.9, 0), Config(0.9, 0.95, 0)),
    ]
    for (goal, draft), similarity, _ in product(pairs, (0.0, 0.25, 1.0), range(12)):
        case += 1
        book.keep(accept_chain(case, goal, draft, similarity))


def copy_blocks(book: Book) -> None:
    case = 8000
    configs = (Config(0.6, 0.95, 20), Config(1.0, 0.95, 20), Config(1.0, 0.95, 0), Config(1.0, 0.5, 4))
    for config, length, rep in product(configs, (1, 3, 8), range(8)):
        case += 1
        cases = [case * 10 + r for r in range(length)]
        rows = np.stack([logits_row("hash", c, 24, 3.0) for c in cases])
        block = [int(np.argmax(row)) if (rep + r) % 4 else int(np.argsort(row)[-3]) for r, row in enumerate(rows)]
        tape = Tape(case)
        accepted, correction = gen._point_mass_block_accept(mx.array(rows), block, config, tape)
        book.keep({
            "id": f"sampler-{case:05d}", "kind": "point_mass_block",
            "logits": {"rule": "hash", "row_cases": cases, "vocab": 24, "scale": 3.0},
            "sampler": sampler(config), "seed": case, "block": block,
            "accepted": int(accepted), "correction": correction,
            "trace": "".join(tape.trace), "final_state": tape.state_hex,
        })  # fmt: skip


def boundaries(book: Book) -> None:
    """Uniforms that land exactly on a cumulative edge, one step above it, one step below."""
    for seed in range(16):
        u = float(real_rng(seed).random())
        points = {"on_edge": u, "above": float(np.nextafter(u, 1.0)), "below": float(np.nextafter(u, 0.0))}
        for name, first in points.items():
            p = samp.SparseDistribution(np.array([10, 11]), np.array([first, 1.0 - first]), 16)
            if float(p.probs[0]) != first:
                continue  # the normalisation moved it
            decision = samp.verify_one_token(p, samp.SparseDistribution.one_hot(10, 16), 10, real_rng(seed))
            book.keep({
                "id": f"sampler-edge-{seed}-{name}", "kind": "edge", "seed": seed, "ids": [10, 11],
                "probs_hex": [hexd(x) for x in p.probs], "first_uniform_hex": hexd(u),
                "token": int(samp.sample_from_distribution(p, real_rng(seed))),
                "draft_token": 10, "draft_is_point_mass": True,
                "accepted": bool(decision.accepted), "emitted": int(decision.token_id),
            })  # fmt: skip


def bad_rows(book: Book) -> None:
    nan, inf = float("nan"), float("inf")
    rows = ([nan, 1, 2], [inf, 1, 2], [-inf, -inf, -inf], [-inf, 1, 2], [nan, nan, nan], [1, inf, nan], [-inf, nan, 1])
    for (i, values), (t, top_k) in product(enumerate(rows), ((0.0, 2), (1.0, 2), (1.0, 0), (0.6, 20))):
        outcome: Record
        try:
            token, _ = gen._sample_from_logits(mx.array(values), Config(t, 0.95, top_k), Tape(0))
            outcome = {"token": int(token)}
        except samp.NonFiniteLogitsError as error:
            outcome = {"raises": "NonFiniteLogitsError", "nan": error.nan_count, "inf": error.inf_count}
        book.keep({
            "id": f"sampler-err-{i}-{t}-{top_k}", "kind": "non_finite", "values": [str(v) for v in values],
            "temperature": t, "top_k": top_k, "outcome": outcome,
        })  # fmt: skip


def build() -> list[Record]:
    book = Book("sampler")
    for part in (
        plain_rows,
        penalised_rows,
        rounded_penalties,
        released_vocabulary,
        draft_rows,
        batched_rows,
        accept_chains,
        copy_blocks,
        boundaries,
        bad_rows,
    ):
        part(book)
    return book.records
