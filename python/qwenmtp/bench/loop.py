"""Host cost of the decode loops: no model, vocabulary 248,320, .6/.95/20, eight different rows in turn."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from qwenmtp.bench.timing import BenchResult, result
from qwenmtp.engine import null_decoder

VOCAB = 248_320
ROWS = 8
SAMPLER = (0.6, 0.95, 20, 0.0, 0.0)
DEPTH = 3
TOKENS = 120  # of one repetition
DTYPES = ("float32", "bfloat16")
PARTS = ("draft", "verify", "accept", "bonus")

# What MTPLX does between a row and its token, as its loops do it: sampler, then the draw. Off macOS its import needs a
# stand-in for one system library.
MTPLX_SCRIPT = """
import ctypes, json, sys, time
if sys.platform != "darwin":
    real = ctypes.CDLL
    class Null:
        def __getattr__(self, name):
            call = lambda *a, **k: 0
            call.argtypes = call.restype = None
            return call
    ctypes.CDLL = lambda n, *a, **k: Null() if str(n).startswith("/usr/lib/libSystem") else real(n, *a, **k)
import mlx.core as mx, numpy as np
if sys.platform != "darwin":
    mx.set_default_device(mx.cpu)
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
    """The rows as the loop takes them; bfloat16 as its bits."""
    if dtype == "float32":
        return rows
    return ((rows.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def measure(rows: np.ndarray, *, speculate: bool, seed: int) -> dict[str, float]:
    """Seconds of an AR token, or of a depth-3 round with every draft accepted (seven rows read), and their parts.

    `cpu` is this thread's own time: what the clock would say on an idle machine.
    """
    options = {
        "target": SAMPLER,
        "seed": seed,
        "max_tokens": TOKENS,
        "speculate": speculate,
        "depth": DEPTH,
        "context_copy": False,
    }
    decoder = null_decoder(rows, [1, 2, 3], options)
    decoder.prefill()
    decoder.step()
    before = decoder.statistics
    start, cpu = time.perf_counter(), time.thread_time()
    while not decoder.done:
        decoder.step()
    seconds, cpu = time.perf_counter() - start, time.thread_time() - cpu
    after = decoder.statistics
    rounds = after["rounds"] - before["rounds"]
    parts = {name: after["seconds"][name] - before["seconds"][name] for name in PARTS}
    parts["other"] = seconds - sum(parts.values())
    parts["cpu"] = cpu
    return {name: part / rounds for name, part in (("total", seconds), *parts.items())}


def mtplx_us(python: str, rows: np.ndarray) -> dict[str, float]:
    """Median microseconds of MTPLX's sampler on the same rows, run by a python that has it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, rows)
        done = subprocess.run([python, "-c", MTPLX_SCRIPT, str(path)], capture_output=True, text=True, check=True)
    times = json.loads(done.stdout.splitlines()[-1])
    return {name: statistics.median(values) for name, values in times.items()}


def loop(repeats: int, mtplx_python: str | None = None) -> tuple[list[BenchResult], dict[str, Any]]:
    """The measured cases, and the summary: microseconds of the slower dtype."""
    rows = make_rows()
    cases: dict[str, list[dict[str, float]]] = {f"{kind} {d}": [] for d in DTYPES for kind in ("ar token", "round")}
    for repetition in range(repeats + 1):
        for name, samples in cases.items():
            kind, _, dtype = name.rpartition(" ")
            sample = measure(in_dtype(rows, dtype), speculate=kind == "round", seed=repetition)
            if repetition:  # the first one warms up
                samples.append(sample)
    results = [
        result(
            name,
            [s["total"] for s in samples],
            shape=f"{VOCAB} logits",
            extra={
                f"{part} us": round(1e6 * statistics.median(s[part] for s in samples), 1)
                for part in (*PARTS, "other", "cpu")
            },
        )
        for name, samples in cases.items()
    ]
    us = {r.name: 1e6 * r.median for r in results}
    summary: dict[str, Any] = {
        "ar_us_per_token": max(us[f"ar token {d}"] for d in DTYPES),
        "round_depth3_us": max(us[f"round {d}"] for d in DTYPES),
    }
    if mtplx_python:
        reference = mtplx_us(mtplx_python, rows)
        summary["mtplx_us_per_token"] = reference
        summary["mtplx_ratio"] = min(reference[d] / us[f"ar token {d}"] for d in DTYPES)
    return results, summary
