"""Tokens a second of an open model: plain decoding, drafting at every depth, prefill."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

from qwenmtp.bench.moved import DEFAULT_CONTEXT, Steps, token_ids
from qwenmtp.bench.timing import BenchResult, Roofline, interleaved, peak_memory, result
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
    wishes: dict[str, Any] = {} if args.dtype is None else {"dtype": args.dtype}
    if args.synthetic:  # its table is a hole
        wishes["ple_prewarm"] = "off"
    return load(args.model, **wishes)


def _prompts(model: Model) -> list[str] | list[list[int]]:
    """Text, or ids for a model without a tokenizer."""
    if (model.path / "tokenizer.json").exists():
        return list(PROMPTS)
    return [token_ids(model, len(text)) for text in PROMPTS]


def _answers(
    model: Model, args: argparse.Namespace, roof: Roofline, modes: list[tuple[str, dict[str, Any], float]]
) -> list[BenchResult]:
    """Each mode answers the same prompts with the same number of tokens; only seconds of decoding count."""
    turns: dict[str, list[list[Turn]]] = {name: [] for name, _, _ in modes}
    prompts = _prompts(model)

    def case(name: str, session: dict[str, Any], temperature: float) -> Callable[[], None]:
        return lambda: turns[name].append(
            [_turn(model, session, temperature, prompt, args.tokens) for prompt in prompts]
        )

    interleaved({name: case(name, session, t) for name, session, t in modes} | {"": roof.measure}, args.repeats)
    steps, tokens = Steps(model, DEFAULT_CONTEXT), len(PROMPTS) * args.tokens
    out: list[BenchResult] = []
    step = 0.0  # seconds of a token of the plain mode before
    for name, session, _ in modes:
        timed = turns[name][1:]
        seconds = [sum(t.timing["decode"] for t in each) for each in timed]
        facts: dict[str, Any] = {"peak memory": peak_memory()}
        if session.get("mode") == "ar":
            step = statistics.median(seconds) / tokens
            moved = tokens * steps.moved()
        else:
            facts |= _acceptance([t.stats for t in timed[0]], tokens) | _costs(timed, step)
            moved = sum(_moved(steps, t.stats) for t in timed[0])
        out.append(
            result(
                name,
                seconds,
                shape=f"{len(PROMPTS)} x {args.tokens} tokens",
                work=tokens,
                unit="tok",
                bytes_moved=moved,
                extra=facts,
            )
        )
    return out


def _costs(timed: list[list[Turn]], step: float) -> dict[str, float]:
    """What a verify and a draft cost, in tokens of plain decoding; medians over the repetitions."""

    def of(seconds: str, count: str) -> float:
        each = [sum(t.timing[seconds] for t in r) / max(1, sum(t.stats[count] for t in r)) for r in timed]
        return round(float(statistics.median(each)) / step, 2)

    return {"verify in steps": of("verify", "verify_calls"), "draft in steps": of("draft", "drafted_tokens")}


def _moved(steps: Steps, stats: dict[str, Any]) -> int:
    """Bytes of an answer's verifies and drafts."""
    verifies: int = sum(n * steps.moved(1 + depth) for depth, n in enumerate(stats["rounds_by_depth"]) if n)
    return verifies + int(stats["drafted_tokens"]) * steps.moved(draft=True)


def _turn(model: Model, session: dict[str, Any], temperature: float, prompt: str | list[int], n: int) -> Turn:
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


def decode(args: argparse.Namespace, roof: Roofline) -> list[BenchResult]:
    """Plain decoding, greedy and sampled."""
    with _opened(args) as model:
        return _answers(model, args, roof, [(f"ar T={t}", {"mode": "ar"}, t) for t in (0.0, 0.6)])


def mtp(args: argparse.Namespace, roof: Roofline) -> list[BenchResult]:
    """Plain decoding against drafting at depths 1..3 and auto, greedy and sampled."""
    with _opened(args) as model:
        modes: list[tuple[str, dict[str, Any], float]] = []
        for t in (0.0, 0.6):
            modes.append((f"ar T={t}", {"mode": "ar"}, t))
            modes += [(f"depth {d} T={t}", {"depth": d}, t) for d in (1, 2, 3, "auto")]
        return _answers(model, args, roof, modes)


def prefill(args: argparse.Namespace, roof: Roofline) -> list[BenchResult]:
    """Reading a prompt of `--tokens` tokens from nothing."""
    with _opened(args) as model:
        ids, seconds = token_ids(model, args.tokens), []
        for _ in range(args.repeats + 1):
            with model.session(mode="ar") as s:
                for _ in s.generate(ids, SamplingParams(temperature=0), max_tokens=1, ignore_stop=True):
                    pass
                assert s.last_turn is not None
                seconds.append(s.last_turn.timing["prefill"])
            roof.measure()
        moved = model.session(mode="ar").traffic(ids)
        return [
            result(
                "prefill",
                seconds[1:],
                shape=f"{args.tokens} tokens",
                work=args.tokens,
                unit="tok",
                bytes_moved=sum(n_bytes for _, n_bytes in moved.values()),
                extra={"peak memory": peak_memory()},
            )
        ]
