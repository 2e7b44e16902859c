"""What bounds one token: a packed model and its float32 copy, in turns with plain reads of memory.

    python benchmarks/bench_step.py [--model DIR] [--tokens N] [--repeats N] [--csv FILE] [--json]

Writes a float32 copy of the pack's trunk into a temporary folder, lets both answer the same ids, greedily and without
drafts, and prints: time a step, bytes it moves, their speed, and the share of the read bandwidth at which its weights
pass; by kind of node, how many there are, their bytes, and what these take at that bandwidth; and how a step's time
falls into building its graph and waiting for it (spans of a trace, which costs a little). Ends with 1 if the weights
of the float32 copy pass at less than half of the read bandwidth.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mlx.core as mx

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # behind an installed one
import qwenmtp
from qwenmtp.bench.moved import DEFAULT_CONTEXT, Steps, token_ids
from qwenmtp.bench.timing import BenchResult, Roofline, environment, interleaved, result, write_csv
from qwenmtp.inventory import inventory
from qwenmtp.terminal import human_bytes, table
from qwenmtp.weights import ModelFiles, open_model_files

TARGET = 0.5


def float32_copy(files: ModelFiles, folder: Path) -> None:
    """The trunk in float32, without the MTP head, which no step reads; its n-gram table stays as it is stored."""
    config = {k: v for k, v in files.config.items() if not k.startswith("quantization")}
    (folder / "config.json").write_text(json.dumps(config))
    trunk: dict[str, mx.array] = {}
    for path in map(Path, files.files):
        stored = mx.load(str(path))
        if any(name.startswith("ngram.") for name in stored):
            (folder / path.name).symlink_to(path.resolve())
            continue
        for name, values in stored.items():
            stem, _, part = name.rpartition(".")
            if name.startswith("mtp.") or (part in ("scales", "biases") and f"{stem}.weight" in stored):
                continue
            if f"{stem}.scales" in stored:
                scales, biases = (stored[f"{stem}.{p}"].astype(mx.float32) for p in ("scales", "biases"))
                bits, group = files.quant.get(stem, files.quant.get("", (0, 0)))
                values = mx.dequantize(values, scales, biases, group, bits)
            trunk[name] = values if values.dtype == mx.int64 else values.astype(mx.float32)
    mx.save_safetensors(str(folder / "model.safetensors"), trunk, {"format": "mlx"})


def weight_bytes(path: Path) -> int:
    """Of all weights that a token needs."""
    return round(sum(c.per_token for c in inventory(open_model_files(path))["trunk"].values()))


def answer(model: qwenmtp.Model, n: int) -> tuple[list[int], float]:
    """Greedy ids and the seconds their decoding took."""
    with model.session(mode="ar") as session:
        ids = token_ids(model, DEFAULT_CONTEXT)
        params = qwenmtp.SamplingParams(temperature=0)
        got = [i for r in session.generate(ids, params, max_tokens=n, ignore_stop=True) for i in r.ids]
        assert session.last_turn is not None
        return got, session.last_turn.timing["decode"]


def spans(path: Path, n: int) -> dict[str, float]:
    """Milliseconds a step by span, of one traced answer of n tokens."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with qwenmtp.load(path, dtype="float32", trace=str(file)) as model:
            answer(model, n)
        events = json.loads(file.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    rounds = [e for e in events if e.get("name") == "round"]
    total: dict[str, float] = defaultdict(float)
    for e in events:
        within = any(r["ts"] <= e.get("ts", -1) <= r["ts"] + r["dur"] and r["tid"] == e.get("tid") for r in rounds)
        if within and e.get("ph") == "X":
            total[e["name"]] += e["dur"] / 1e3 / len(rounds)
    return dict(total)


def nodes(model: qwenmtp.Model, step: float, bandwidth: float) -> list[tuple[Any, ...]]:
    """By kind: nodes, bytes, milliseconds at the read bandwidth, and their share of the step; most bytes first."""
    session = model.session(mode="ar")
    for _ in session.generate(token_ids(model, DEFAULT_CONTEXT), max_tokens=0):
        pass
    moved = session.traffic([1])
    return [
        (kind, n, human_bytes(size), round(1e3 * size / bandwidth, 3), f"{size / bandwidth / step:.0%}")
        for kind, (n, size) in sorted(moved.items(), key=lambda item: -item[1][1])
        if size
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).resolve().parents[1] / "models" / "demo")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        float32_copy(open_model_files(args.model), folder)
        paths = {"packed": args.model, "float32": folder}
        models = {k: stack.enter_context(qwenmtp.load(p, dtype="float32")) for k, p in paths.items()}
        roof, seconds = Roofline(), {k: [] for k in models}

        def case(form: str) -> Any:
            return lambda: seconds[form].append(answer(models[form], args.tokens)[1])

        interleaved({form: case(form) for form in models} | {"": roof.measure}, args.repeats)
        bandwidth = max(roof.bandwidth.values())
        results, shares, kinds = [], {}, {}
        for form, model in models.items():
            step = [s / args.tokens for s in seconds[form][1:]]
            extra = {"weights": weight_bytes(paths[form]), "read bandwidth": round(bandwidth)}
            moved = Steps(model).moved()
            r = result(form, step, shape="AR step", work=1, unit="tok", bytes_moved=moved, extra=extra)
            results.append(r)
            shares[form] = extra["weights"] / r.median / bandwidth
            kinds[form] = nodes(model, r.median, bandwidth)
        traced = {form: spans(path, args.tokens) for form, path in paths.items()}
    if args.csv:
        write_csv(args.csv, results, "python benchmarks/bench_step.py")
    if args.json:
        report = {"results": [r.to_json() for r in results], "shares": shares, "nodes": kinds, "spans": traced}
        print(json.dumps({**report, "environment": environment()}))
    else:
        show(results, shares, kinds, traced, roof)
    return 0 if shares["float32"] >= TARGET else 1


def show(
    results: list[BenchResult],
    shares: dict[str, float],
    kinds: dict[str, Any],
    traced: dict[str, dict[str, float]],
    roof: Roofline,
) -> None:
    rows = [
        (
            r.name,
            round(r.rate, 1),
            *(round(1e3 * s, 3) for s in (r.median, r.best, r.worst)),
            f"{r.extra['weights'] / 1e6:.1f} MB",
            f"{r.bytes_moved / 1e6:.1f} MB",
            f"{r.bytes_moved / r.median / 1e9:.1f} GB/s",
            f"{shares[r.name]:.0%}",
        )
        for r in results
    ]
    print(table(rows, ("form", "tok/s", "median ms", "min", "max", "weights", "moved", "speed", "weights of roofline")))
    for n, speed in roof.bandwidth.items():
        print(f"{n} thread{'s read' if n > 1 else ' reads'} {speed / 1e9:.1f} GB/s in this run")
    for form, found in kinds.items():
        print()
        print(table(found, (form, "nodes", "bytes", "ms at roofline", "of the step")))
        print(", ".join(f"{name} {ms:.3f} ms" for name, ms in traced[form].items()) + " a traced step")


if __name__ == "__main__":
    sys.exit(main())
