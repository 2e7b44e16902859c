"""Scripted fixtures: every way out of the MTP loop, context copy, repetition stop."""

from __future__ import annotations

import itertools
from typing import Any

from cases_mtp import LANES, hash_model
from recorder import Book, Config, Record, run, sampler
from scripted import SALT, fold

COPY_LANES = {"capture": {"MTPLX_FAMILY_CAPTURE_COMMIT": "1"}, "reforward": {"MTPLX_FAMILY_CAPTURE_COMMIT": "0"}}


def scripted(vocab: int, truth: list[int], drafts: list[int] | None = None) -> Record:
    return {"vocab": vocab, "mode": "script", "script": truth, "draft_script": truth if drafts is None else drafts}


def at(temperature: float) -> Record:
    return sampler(Config(temperature, 0.95, 20))


# ------------------------------------------------------------------ exits
TRUTH = [0, 0, 0, *range(10, 23)]  # after the prompt of three


def exit_matrix(book: Book) -> None:
    table = itertools.product(LANES, (1, 2, 3), (0.0, 0.6), (0, 1, 2, 3), range(7))
    for lane, depth, temperature, wrong, limit in table:
        if wrong > depth:
            continue
        drafts = [30 if wrong and (i - 3) % (depth + 1) == wrong else t for i, t in enumerate(TRUTH)]
        stops = [None, *TRUTH[3 : 3 + limit]] if limit in (5, 6) else [None]
        for stop in stops:
            book.add(
                "mtp", "exit", model=scripted(32, TRUTH, drafts), prompt=[5, 6, 7], max_tokens=limit,
                sampler=at(temperature), depth=depth, seed=0, stop=[] if stop is None else [stop], env=LANES[lane],
                lane=lane, wrong_draft_at_depth=wrong,
            )  # fmt: skip


def final_commits(book: Book) -> None:
    """The final commit fails: response kept, state not committable. Capture off: nothing is committed."""
    for limit, depth, temperature, lane in itertools.product((1, 2, 3, 5), (1, 2, 3), (0.0, 0.6), LANES):
        base: Record = {
            "model": scripted(32, TRUTH), "prompt": [5, 6, 7], "max_tokens": limit, "sampler": at(temperature),
            "depth": depth, "seed": 0, "stop": [], "env": LANES[lane],
        }  # fmt: skip
        calls = run("mtp", base)["calls"]
        if calls[-1] == ["trunk", [TRUTH[2 + limit]]]:
            book.add("mtp", "final-commit-fails", **base, fail_forward_at=len(calls) - 1)
        book.add("mtp", "no-capture", **base, capture=False)


# ------------------------------------------------------------------ context copy
GRAM = [4, 9, 2, 11, 6, 13]
COPY_PROMPT = [1, *GRAM, *range(20, 30), 3, *GRAM]
COPIED = [*range(20, 30), 3, *GRAM, *range(20, 26)]


def copy_base(truth: list[int], lane: str, temperature: float, **more: Any) -> Record:
    return {
        "model": scripted(32, [0] * len(COPY_PROMPT) + truth), "prompt": COPY_PROMPT, "depth": 3, "seed": 1,
        "sampler": at(temperature), "stop": [], "env": COPY_LANES[lane],
    } | more  # fmt: skip


def copy_matches(book: Book) -> None:
    """The text repeats the prompt, or leaves it at one position; limits and stops inside the block."""
    diverged = [*COPIED[:4], 30, *COPIED[5:]]
    for (name, truth), lane, temperature in itertools.product(
        (("match", COPIED), ("diverge", diverged)), COPY_LANES, (0.0, 0.6)
    ):
        for limit, stop in itertools.product((1, 2, 6, 14, 18), (None, 22)):
            stops = [] if stop is None else [stop]
            book.add("mtp", f"{name}-{lane}", **copy_base(truth, lane, temperature, max_tokens=limit, stop=stops))
        for limit in range(3, 13):
            book.add("mtp", f"{name}-limit-{lane}", **copy_base(truth, lane, temperature, max_tokens=limit))
        for stop in truth[:12]:
            book.add("mtp", f"{name}-stop-{lane}", **copy_base(truth, lane, temperature, max_tokens=18, stop=[stop]))
        for after in range(1, 5):
            more = {"max_tokens": 14, "raise_in_callback": after}
            book.add("mtp", f"{name}-cancel-{lane}", **copy_base(truth, lane, temperature, **more))
    for wrong, lane, temperature, depth in itertools.product(range(1, 10), COPY_LANES, (0.0, 0.6), (1, 3)):
        truth = [*COPIED[:wrong], 30, *COPIED[wrong + 1 :]]
        more = {"max_tokens": 16, "depth": depth}
        book.add("mtp", f"wrong{wrong}-{lane}", **copy_base(truth, lane, temperature, **more))


def copy_hashed(book: Book) -> None:
    """Three ids and a periodic prompt: matches everywhere, agreement by chance."""
    prompt = [(i * 7 + 3) % 32 % 3 for i in range(9)] * 6
    for seed, temperature in itertools.product(range(24), (1.0, 0.6)):
        book.add(
            "mtp", "hash", model=hash_model(3), prompt=prompt, max_tokens=30, depth=3, seed=seed,
            sampler=at(temperature), stop=[], env=COPY_LANES["reforward" if seed % 2 == 0 else "capture"],
        )  # fmt: skip
    for seed in range(8):
        h, body = SALT + seed, []
        for i in range(320):
            h = fold(h, i)
            body.append(h % 3)
        book.add(
            "mtp", "suspend", model=hash_model(3), prompt=body, max_tokens=240, depth=3, seed=seed,
            sampler=at(1.0 if seed % 2 else 0.0), stop=[], env=COPY_LANES["capture"],
        )  # fmt: skip


def copy_ladder(book: Book) -> None:
    """A long match: blocks grow from 8 to 24 tokens."""
    prompt = [*range(1, 71), *range(1, 7)]
    for lane, temperature, wrong in itertools.product(COPY_LANES, (0.0, 0.6), (None, 3, 12, 20, 30, 45)):
        truth = [0] * len(prompt) + [*range(7, 71)] + [75] * 8
        if wrong is not None:
            truth[len(prompt) + wrong] = 74
        book.add(
            "mtp", f"long-{lane}", model=scripted(80, truth), prompt=prompt, max_tokens=64, depth=3, seed=2,
            sampler=at(temperature), stop=[], env=COPY_LANES[lane],
        )  # fmt: skip


# ------------------------------------------------------------------ repetition stop
SMALL = {
    "MTPLX_REPETITION_STOP_MIN_TOKENS": "12", "MTPLX_REPETITION_STOP_MIN_REPEATED_TOKENS": "6",
    "MTPLX_REPETITION_STOP_MIN_REPEATS": "3", "MTPLX_REPETITION_STOP_MAX_BLOCK_TOKENS": "4",
    "MTPLX_REPETITION_STOP_MAX_CYCLE_TOKENS": "64", "MTPLX_REPETITION_STOP_MIN_CYCLE_SPAN_TOKENS": "40",
}  # fmt: skip


def repetition(book: Book) -> None:
    bodies = {
        "period1": [9],
        "period2": [9, 8],
        "period3": [9, 8, 7],
        "period4": [9, 8, 7, 6],
        "period5": [9, 8, 7, 6, 5],
        "late": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] + [9, 8] * 60,
        "breaks": [9, 9, 9, 9, 1, 9, 9, 9, 9, 2, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9],
    }
    for (name, body), (kind, depth), armed in itertools.product(
        bodies.items(), (("ar", 0), ("mtp", 3), ("mtp", 1)), (True, False)
    ):
        script = [0, 0, 0, *(body * 200)[:130]]
        book.add(
            kind, f"{name}-{kind}", model=scripted(16, script), prompt=[1, 2, 3], max_tokens=60, sampler=at(0.0),
            seed=0, stop=[], repetition_stop=armed, env={**LANES["capture"], **SMALL},
            **({"depth": depth} if depth else {}),
        )  # fmt: skip
    for (name, body), kind in itertools.product(
        (("default1", [9]), ("default7", [1, 2, 3, 4, 5, 6, 7])), ("ar", "mtp")
    ):
        script = [0, 0, 0, *(body * 900)[:900]]
        book.add(
            kind, f"{name}-{kind}", model=scripted(16, script), prompt=[1, 2, 3], max_tokens=800, sampler=at(0.0),
            seed=0, stop=[], repetition_stop=True, env=LANES["capture"], **({"depth": 3} if kind == "mtp" else {}),
        )  # fmt: skip


def build_exits() -> list[Record]:
    book = Book("exit")
    exit_matrix(book)
    final_commits(book)
    return book.records


def build_copy() -> list[Record]:
    book = Book("copy")
    copy_matches(book)
    copy_hashed(book)
    copy_ladder(book)
    return book.records


def build_repetition() -> list[Record]:
    book = Book("guard")
    repetition(book)
    return book.records
