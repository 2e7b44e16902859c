"""AR fixtures: samplers, limits, evaluation modes, stop positions, prompts; failing captures, cancellations."""

from __future__ import annotations

import itertools
from typing import Any

from recorder import Book, Config, Record, run, sampler

SAMPLERS = [
    Config(0.6, 0.95, 20),
    Config(1.0, 0.95, 20),
    Config(0.5, 1.0, 2),
    Config(1.0, 0.0, 20),
    Config(1.0, 1.0, 20),
    Config(0.0, 0.95, 20),
    Config(0.8, 0.95, 20, 0.9, 0.0),
    Config(0.0, 0.95, 20, 0.5, 0.4),
    Config(1.0, 0.95, 0),
]
MORE_SAMPLERS = [
    Config(0.7, 0.95, 20, 0.0, 0.8),
    Config(1.0, 0.9, 0, 0.6, 0.3),
    Config(1.0, 0.95, 1),
    Config(0.01, 0.95, 20),
    Config(1.3, 0.999, 40),
    Config(1.0, 1e-9, 20),
]
MODES = {
    "sync": {},
    "async": {"MTPLX_ASYNC_AR": "1"},
    "obsolete_flag": {"MTPLX_AR_PIPELINE": "1"},
    "async_obsolete": {"MTPLX_ASYNC_AR": "1", "MTPLX_AR_PIPELINE": "1"},
}
PROMPTS = ([3, 1, 4], [5], [9, 2, 6, 5, 3, 5, 8, 9, 7])


def base(config: Config, **more: Any) -> Record:
    return {"model": {"vocab": 32, "mode": "hash"}, "prompt": [3, 1, 4], "sampler": sampler(config), "stop": []} | more


def matrix(book: Book) -> None:
    table = itertools.product(("hash", "ties"), SAMPLERS, PROMPTS, (0, 1, 2, 3, 12), MODES.items())
    for mode, config, prompt, limit, (name, extra) in table:
        book.add(
            "ar", name, **base(config, model={"vocab": 32, "mode": mode}, prompt=prompt, max_tokens=limit, env=extra),
            seed=11 + len(prompt),
        )  # fmt: skip
    for config, limit, vocab in itertools.product(MORE_SAMPLERS, (1, 3, 12), (7, 48)):
        book.add(
            "ar", "sampler", **base(config, model={"vocab": vocab, "mode": "hash"}, max_tokens=limit), seed=6, env={}
        )


def stops(book: Book) -> None:
    """Take a free run, then stop at each of its tokens."""
    for config, mode, capture in itertools.product(SAMPLERS, ("hash", "ties"), (True, False)):
        spec = base(config, model={"vocab": 32, "mode": mode}, prompt=[7, 8], max_tokens=6, seed=3, env={})
        free = run("ar", spec)["tokens"]
        for position, token in enumerate(free):
            book.add("ar", f"stop{position}", **{**spec, "stop": [token], "capture": capture})
        book.add("ar", "stop_any", **{**spec, "stop": sorted(set(free)), "capture": capture})
        book.add(
            "ar", "stop_never", **{**spec, "stop": [i for i in range(32) if i not in free][:1], "capture": capture}
        )


def prompts(book: Book) -> None:
    for prompt, config, eos in itertools.product(([5], [5, 6], list(range(1, 20))), SAMPLERS[:6], (9, 20)):
        spec = base(config, model={"vocab": 32, "mode": "hash", "eos": eos}, prompt=prompt, max_tokens=8, stop=None)
        book.add("ar", "prompt", **spec, seed=5, env={})


def interruptions(book: Book) -> None:
    for config, after, mode in itertools.product(SAMPLERS[:2] + SAMPLERS[5:8], range(1, 9), ("sync", "async")):
        spec = base(config, max_tokens=8, raise_in_callback=after)
        book.add("ar", "cancel", **spec, seed=5, env=MODES[mode])
    # the final capture fails: log index 2 + limit is its forward (two prefill forwards, limit - 1 steps)
    for config, limit in itertools.product(SAMPLERS, (1, 2, 3, 5)):
        book.add("ar", "fail", **base(config, max_tokens=limit, fail_forward_at=limit + 1), seed=5, env={})
    # a forward inside the loop or the prefill fails
    for config, at in itertools.product([*SAMPLERS[:2], SAMPLERS[5]], range(5)):
        book.add("ar", "fail_inside", **base(config, max_tokens=6, fail_forward_at=at), seed=5, env={})


def build() -> list[Record]:
    book = Book("ar")
    for part in (matrix, stops, prompts, interruptions):
        part(book)
    return book.records
