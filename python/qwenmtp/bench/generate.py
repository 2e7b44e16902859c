"""Tokens a second of an open model: plain decoding, drafting at every depth, prefill."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from qwenmtp.bench.timing import BenchResult, interleaved, result
from qwenmtp.model import Model, load
from qwenmtp.sampling import SamplingParams
from qwenmtp.turns import Turn

PROMPTS = (
    "def main(argv):\n    ",
    "import os\nimport sys\n\n\nclass ",
    "    def __init__(self, name):\n        self.",
    "for i in range(",
)


def _opened(args: argparse.Namespace) -> Model:
    return load(args.model, **({} if args.dtype is None else {"dtype": args.dtype}))


def _answers(
    model: Model, args: argparse.Namespace, modes: list[tuple[str, dict[str, Any], float]]
) -> list[BenchResult]:
    """Each mode answers the same prompts with the same number of tokens; only seconds of decoding count."""
    seconds: dict[str, list[float]] = {}
    facts: dict[str, dict[str, Any]] = {}

    def case(name: str, session: dict[str, Any], temperature: float) -> Callable[[], None]:
        def once() -> None:
            turns = [_turn(model, session, temperature, prompt, args.tokens) for prompt in PROMPTS]
            seconds.setdefault(name, []).append(sum(t.timing["decode"] for t in turns))
            facts[name] = _acceptance([t.stats for t in turns], len(turns) * args.tokens)

        return once

    interleaved({name: case(name, session, t) for name, session, t in modes}, args.repeats)
    return [
        result(
            name,
            seconds[name][1:],
            shape=f"{len(PROMPTS)} x {args.tokens} tokens",
            work=len(PROMPTS) * args.tokens,
            unit="tok",
            extra=facts[name],
        )
        for name, _, _ in modes
    ]


def _turn(model: Model, session: dict[str, Any], temperature: float, prompt: str, n: int) -> Turn:
    with model.session(**session) as s:
        for _ in s.generate(prompt, SamplingParams(temperature=temperature, seed=0), max_tokens=n, ignore_stop=True):
            pass
        assert s.last_turn is not None
        return s.last_turn


def _acceptance(stats: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """Accepted of the tested drafts by depth, and tokens a verify; nothing for plain decoding."""
    if not any(s["drafted_tokens"] for s in stats):
        return {}
    tested = [sum(n) for n in zip(*(s["tested_by_depth"] for s in stats), strict=True)]
    accepted = [sum(n) for n in zip(*(s["accepted_by_depth"] for s in stats), strict=True)]
    return {
        "accepted by depth": " ".join(f"{a / n:.0%}" for a, n in zip(accepted, tested, strict=True) if n),
        "tokens a verify": round(tokens / sum(s["verify_calls"] for s in stats), 2),
    }


def decode(args: argparse.Namespace) -> list[BenchResult]:
    """Plain decoding, greedy and sampled."""
    with _opened(args) as model:
        return _answers(model, args, [(f"ar T={t}", {"mode": "ar"}, t) for t in (0.0, 0.6)])


def mtp(args: argparse.Namespace) -> list[BenchResult]:
    """Plain decoding against drafting at depths 1..3 and auto, greedy and sampled."""
    with _opened(args) as model:
        modes: list[tuple[str, dict[str, Any], float]] = []
        for t in (0.0, 0.6):
            modes.append((f"ar T={t}", {"mode": "ar"}, t))
            modes += [(f"depth {d} T={t}", {"depth": d}, t) for d in (1, 2, 3, "auto")]
        return _answers(model, args, modes)


def prefill(args: argparse.Namespace) -> list[BenchResult]:
    """Reading a prompt of `--tokens` tokens from nothing."""
    with _opened(args) as model:
        vocab = model.info()["geometry"]["vocab_size"]
        ids = [(7 * i * i + 13 * i) % vocab for i in range(args.tokens)]
        seconds = []
        for _ in range(args.repeats + 1):
            with model.session(mode="ar") as s:
                for _ in s.generate(ids, SamplingParams(temperature=0), max_tokens=1, ignore_stop=True):
                    pass
                assert s.last_turn is not None
                seconds.append(s.last_turn.timing["prefill"])
        return [result("prefill", seconds[1:], shape=f"{args.tokens} tokens", work=args.tokens, unit="tok")]
