"""Tokens a second of an open model: plain decoding, drafting at every depth, prefill."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from qwenmtp.bench.timing import BenchResult, interleaved, result
from qwenmtp.model import Model, load
from qwenmtp.sampling import SamplingParams

PROMPT = "def main(argv):\n    "


def _opened(args: argparse.Namespace) -> Model:
    return load(args.model, **({} if args.dtype is None else {"dtype": args.dtype}))


def _answers(
    model: Model, args: argparse.Namespace, modes: list[tuple[str, dict[str, Any], float]]
) -> list[BenchResult]:
    """Each mode decodes the same number of tokens; only seconds of decoding count."""
    seconds: dict[str, list[float]] = {}
    facts: dict[str, dict[str, Any]] = {}
    tokens: dict[str, int] = {}

    def case(name: str, session: dict[str, Any], temperature: float) -> Callable[[], None]:
        def once() -> None:
            with model.session(**session) as s:
                params = SamplingParams(temperature=temperature, seed=0)
                for _ in s.generate(PROMPT, params, max_tokens=args.tokens, ignore_stop=True):
                    pass
                turn = s.last_turn
            assert turn is not None
            seconds.setdefault(name, []).append(turn.timing["decode"])
            tokens[name] = len(turn.ids)
            drafted = turn.stats["drafted_tokens"]
            if drafted:
                facts[name] = {
                    "accepted": f"{turn.stats['accepted_drafts'] / drafted:.0%}",
                    "tokens a verify": round(len(turn.ids) / max(1, turn.stats["verify_calls"]), 2),
                }

        return once

    interleaved({name: case(name, session, t) for name, session, t in modes}, args.repeats)
    return [
        result(
            name,
            seconds[name][1:],
            shape=f"{args.tokens} tokens",
            work=tokens[name],
            unit="tok",
            extra=facts.get(name, {}),
        )
        for name, _, _ in modes
    ]


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
