"""How cost grows with the context: time a token and memory behind 4k to 32k tokens, prefill time over the prompt.

    python benchmarks/bench_growth.py [--model DIR] [--contexts N,...] [--prompts N,...] [--repeats N] [--plot DIR]

Decoding goes on from a prompt of each length in turn; attention is sparse from its budget on. Prefill time is fitted by
a n + b n^2 (least squares of the relative error); b is set against the indexer's scores, the only work that grows with
the square: two operations for each row, index head, dimension and pooled key before it. Memory is what a session holds,
against `Model.plan`, and what the process gained. Ends with 1 if a token behind the longest context takes more than 1.3
times one behind the shortest, the fit misses a point by more than 10 %, or memory strays from the plan by more than
5 %. `--json` prints everything.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # behind an installed one
import qwenmtp
from qwenmtp.bench.moved import token_ids
from qwenmtp.bench.plot import lines
from qwenmtp.bench.timing import environment
from qwenmtp.terminal import human_bytes, table

GREEDY = qwenmtp.SamplingParams(temperature=0)
TOKENS = 32
GROWTH, RESIDUAL, PLAN = 1.3, 0.10, 0.05


def resident() -> int:
    """Bytes of this process in memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def run(model: qwenmtp.Model, ids: list[int], n: int, session: Any = None) -> qwenmtp.Turn:
    session = session or model.session(mode="ar")
    for _ in session.generate(ids, GREEDY, max_tokens=n, ignore_stop=True):
        pass
    turn: qwenmtp.Turn = session.last_turn
    return turn


def decoding(model: qwenmtp.Model, contexts: list[int], repeats: int) -> list[dict[str, Any]]:
    """Milliseconds a token behind each context; the contexts take turns."""
    bases = {}
    for n in contexts:
        bases[n] = model.session(mode="ar")
        run(model, token_ids(model, n), 0, bases[n])
    ms: dict[int, list[float]] = {n: [] for n in contexts}
    for repetition in range(repeats + 1):
        for n in contexts:
            fork = bases[n].fork()
            turn = run(model, [*fork.ids, 7], TOKENS, fork)
            if repetition:
                ms[n].append(1e3 * turn.timing["decode"] / TOKENS)
    return [{"context": n, "ms": statistics.median(ms[n]), "best": min(ms[n])} for n in contexts]


def memory(model: qwenmtp.Model, contexts: list[int]) -> list[dict[str, Any]]:
    """Bytes of a session behind each context, against the plan's, and what the process gained by it."""
    rows = []
    for n in contexts:
        before = resident()
        session = model.session()
        run(model, token_ids(model, n), 0, session)
        plan = model.plan(n)
        rows.append(
            {
                "context": n,
                "state": session.state()["bytes"],
                "plan": plan.kv + plan.recurrent + plan.boundaries,
                "process": resident() - before,
            }
        )
        del session
    return rows


def prefill(model: qwenmtp.Model, lengths: list[int], repeats: int) -> dict[str, Any]:
    seconds: dict[int, list[float]] = {n: [] for n in lengths}
    for repetition in range(repeats + 1):
        for n in lengths:
            t = run(model, token_ids(model, n), 1).timing["prefill"]
            if repetition:
                seconds[n].append(t)
    n = np.array(lengths, float)
    t = np.array([statistics.median(seconds[k]) for k in lengths])
    a, b = np.linalg.lstsq(np.stack([n, n * n], 1) / t[:, None], np.ones(len(n)), rcond=None)[0]
    fit = a * n + b * n * n
    g = model.info()["geometry"]
    scores = sum(g["full_attention"]) * g["index_heads"] * g["index_dim"] / g["index_ratio"]  # operations, of n^2
    return {
        "points": [{"tokens": k, "ms": 1e3 * x, "fit ms": 1e3 * y} for k, x, y in zip(lengths, t, fit, strict=True)],
        "a us": 1e6 * float(a),
        "b ns": 1e9 * float(b),
        "residual": float(np.abs(fit / t - 1).max()),
        "quadratic share": float(b * n[-1] ** 2 / fit[-1]),
        "indexer GFLOP/s if b is its scores": float(scores / b / 1e9) if b > 0 else 0.0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).resolve().parents[1] / "models" / "demo")
    parser.add_argument("--contexts", default="4096,8192,16384,32640")
    parser.add_argument("--prompts", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plot", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    contexts, lengths = ([int(n) for n in text.split(",")] for text in (args.contexts, args.prompts))
    with qwenmtp.load(args.model, session_max_bytes="64G") as model:
        decode = decoding(model, contexts, args.repeats)
        fit = prefill(model, lengths, args.repeats)
        held = memory(model, contexts)
    growth = decode[-1]["ms"] / decode[0]["ms"]
    strays = max(abs(row["state"] / row["plan"] - 1) for row in held)
    failed = [
        text
        for text, wrong in (
            (f"a token costs {growth:.2f} times as much, at most {GROWTH}", growth > GROWTH),
            (f"the fit misses by {fit['residual']:.0%}, at most {RESIDUAL:.0%}", fit["residual"] > RESIDUAL),
            (f"memory strays by {strays:.1%}, at most {PLAN:.0%}", strays > PLAN),
        )
        if wrong
    ]
    if args.plot:
        per_token = {"one token": [(r["context"], r["ms"]) for r in decode]}
        lines(args.plot / "decode.png", "Plain decoding", "tokens of context", "ms a token", per_token)
        points = {y: [(r["tokens"], r[y]) for r in fit["points"]] for y in ("ms", "fit ms")}
        lines(args.plot / "prefill.png", "Prefill", "tokens of prompt", "ms", points)
        mib = {k: [(r["context"], r[k] / 2**20) for r in held] for k in ("state", "plan", "process")}
        lines(args.plot / "memory.png", "A session in memory", "tokens of context", "MiB", mib)
    report = {"decode": decode, "growth": growth, "prefill": fit, "memory": held, "failed": failed}
    if args.json:
        print(json.dumps({**report, "environment": environment()}))
    else:
        print(table([tuple(r.values()) for r in rounded(decode)], tuple(decode[0])))
        print(f"growth {growth:.3f}\n")
        print(table([tuple(r.values()) for r in rounded(fit.pop("points"))], ("prompt", "ms", "fit ms")))
        print(", ".join(f"{k} {v:.4g}" for k, v in fit.items()) + "\n")
        print(table([(r["context"], *(human_bytes(v) for v in list(r.values())[1:])) for r in held], tuple(held[0])))
        print("\n".join(failed) or "within bounds")
    return 1 if failed else 0


def rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: round(v, 2) for k, v in row.items()} for row in rows]


if __name__ == "__main__":
    sys.exit(main())
