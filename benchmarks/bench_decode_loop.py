"""Host cost of the decode loops: no model, vocabulary 248,320, .6/.95/20, eight different rows in turn.

    python benchmarks/bench_decode_loop.py [--json] [--mtplx-python VENV/bin/python]

An AR token and a depth-3 round (every draft accepted: seven rows read), float32 and bfloat16, and where their time
goes. With a python that has MTPLX 2.12.2, its sampler reads the same rows in the same run. The JSON fields are those of
the slower dtype.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from qwenmtp import _core  # noqa: E402

VOCAB = 248_320
ROWS = 8
SAMPLER = (0.6, 0.95, 20, 0.0, 0.0)
DEPTH = 3
REPETITIONS = 7
TOKENS = 120  # of one repetition
DTYPES = ("float32", "bfloat16")

# What MTPLX does between a row and its token, as its loops do it: sampler, then the draw.
MTPLX_SCRIPT = """
import json, sys, time
sys.path.insert(0, sys.argv[2])
import oracle_env
import mlx.core as mx, numpy as np
import mtplx.generation as gen
from mtplx.sampling import SamplerConfig
rows, rng, config, times = np.load(sys.argv[1]), np.random.default_rng(0), SamplerConfig(0.6, 0.95, 20), {}
for name, dtype in (("float32", mx.float32), ("bfloat16", mx.bfloat16)):
    arrays = [mx.array(r).astype(dtype) for r in rows]
    mx.eval(arrays)
    times[name] = []
    for i in range(3 * len(arrays)):
        start = time.perf_counter()
        gen._sample_from_logits(arrays[i % len(arrays)], config, rng)
        times[name].append(1e6 * (time.perf_counter() - start))
print(json.dumps(times))
"""


def make_rows() -> np.ndarray:
    """Logits with the spread of a language model's: a few tokens hold most of the mass."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((ROWS, VOCAB)).astype(np.float32) * 2
    for row in rows:
        row[rng.choice(VOCAB, 40, replace=False)] += rng.uniform(4, 12, 40).astype(np.float32)
    return rows


def in_dtype(rows: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "float32":
        return rows
    return ((rows.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def measure(rows: np.ndarray, *, speculate: bool, seed: int) -> dict[str, float]:
    """Microseconds per AR token, or per round of depth 3, and their parts."""
    options = {
        "target": SAMPLER,
        "seed": seed,
        "max_tokens": TOKENS,
        "speculate": speculate,
        "depth": DEPTH,
        "context_copy": False,
    }
    decoder = _core.NullDecoder(rows, [1, 2, 3], options)
    decoder.prefill()
    decoder.step()
    before = decoder.statistics
    start, cpu_start = time.perf_counter(), time.thread_time()
    while not decoder.done:
        decoder.step()
    seconds, cpu_seconds = time.perf_counter() - start, time.thread_time() - cpu_start
    after = decoder.statistics
    rounds = after["rounds"] - before["rounds"]
    parts = {name: after["seconds"][name] - before["seconds"][name] for name in ("draft", "verify", "accept", "bonus")}
    parts["other"] = seconds - sum(parts.values())
    parts["cpu"] = cpu_seconds  # of this thread alone: what the wall clock would say on an idle machine
    return {"us": 1e6 * seconds / rounds} | {name: 1e6 * part / rounds for name, part in parts.items()}


def summary(samples: list[dict[str, float]]) -> dict[str, float]:
    out = {name: statistics.median(s[name] for s in samples) for name in samples[0]}
    totals = [s["us"] for s in samples]
    return out | {"min_us": min(totals), "p90_us": float(np.percentile(totals, 90)), "max_us": max(totals)}


def mtplx_times(python: str, rows: np.ndarray) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, rows)
        oracle = ROOT / "tools" / "oracle" / "decode"
        done = subprocess.run(
            [python, "-c", MTPLX_SCRIPT, str(path), str(oracle)], capture_output=True, text=True, check=True
        )
    return {name: statistics.median(times) for name, times in json.loads(done.stdout.splitlines()[-1]).items()}


def run(mtplx_python: str | None) -> dict[str, Any]:
    rows = make_rows()
    cases = {(dtype, kind): [] for dtype in DTYPES for kind in ("ar", "round")}
    for repetition in range(REPETITIONS + 1):
        for (dtype, kind), samples in cases.items():
            sample = measure(in_dtype(rows, dtype), speculate=kind == "round", seed=repetition)
            if repetition:  # the first one warms up
                samples.append(sample)
    table = {f"{kind}_{dtype}": summary(samples) for (dtype, kind), samples in cases.items()}
    results: dict[str, Any] = {
        "ar_us_per_token": max(table[f"ar_{d}"]["us"] for d in DTYPES),
        "round_depth3_us": max(table[f"round_{d}"]["us"] for d in DTYPES),
    }
    if mtplx_python:
        reference = mtplx_times(mtplx_python, rows)
        results["mtplx_us_per_token"] = reference
        results["mtplx_ratio"] = min(reference[d] / table[f"ar_{d}"]["us"] for d in DTYPES)
    return {"benchmark": "loop", "vocab": VOCAB, "repetitions": REPETITIONS, "results": results, "table": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mtplx-python", help="python of an environment with MTPLX 2.12.2")
    args = parser.parse_args()
    report = run(args.mtplx_python)
    if args.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{'case':<16}{'median us':>10}{'min':>8}{'p90':>8}     cpu   draft  verify  accept   bonus   other")
    for name, row in report["table"].items():
        parts = "".join(f"{row[part]:8.0f}" for part in ("cpu", "draft", "verify", "accept", "bonus", "other"))
        print(f"{name:<16}{row['us']:>10.0f}{row['min_us']:>8.0f}{row['p90_us']:>8.0f}{parts}")
    for name, value in report["results"].items():
        print(name, value)


if __name__ == "__main__":
    main()
