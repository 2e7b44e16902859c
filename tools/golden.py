#!/usr/bin/env python3
"""Judge the network by a directory of goldens: `python tools/golden.py DIR`.

DIR/cases.json maps each npz file to its checkpoint folder, ids, chunks and optional also_chunks, prompt, rollback. All
arrays of the npz are recomputed in float32 and compared within 1e-4, integer arrays exactly; cut.*, bf16.*,
greedy.margin and chunks only describe the recording. Where bf16.logits is recorded, our bfloat16 run may stray from
the float32 logits at most 1.5 times as far (mean) as that one does; a case whose few rows met another expert at a near
tie is judged by the mean over all cases of its checkpoint. Ends with `N passed, M failed`; 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IN_PLACE = Path(__file__).resolve().parent.parent / "python"
if any((IN_PLACE / "qwenmtp").glob("_core*.so")):
    sys.path.insert(0, str(IN_PLACE))

import _qwenmtp_testing as testing  # noqa: E402

from qwenmtp import _core  # noqa: E402
from qwenmtp.weights import open_model_files  # noqa: E402

Arrays = dict[str, NDArray[Any]]
TOLERANCE = 1e-4  # float32 over two frameworks; they differ by 2e-5 (reference/model.md 15)
BF16_SLACK = 1.5
CHAIN = 3


@cache
def load(checkpoint: Path, float32: bool) -> Any:
    m = open_model_files(checkpoint)
    return _core.Model(m.geometry, m.layout, m.files, m.tensors, m.quant, float32)


def joined(parts: list[Arrays]) -> Arrays:
    """Arrays of consecutive forwards as one; select masks are padded to the last width."""
    out = {}
    for name in parts[0]:
        rows = [p[name] for p in parts]
        if name.endswith(".select"):
            width = rows[-1].shape[1]
            rows = [np.pad(r, ((0, 0), (0, width - r.shape[1]))).astype(bool) for r in rows]
        out[name] = np.concatenate(rows)
    return out


def by_id(arrays: Arrays) -> Arrays:
    """Router rows in ascending order of expert id; their own order is the summation's."""
    out = dict(arrays)
    for name in [n for n in arrays if n.endswith("router.ids")]:
        order = np.argsort(arrays[name], axis=-1, kind="stable")
        weight = name.replace(".ids", ".w")
        out[name] = np.take_along_axis(arrays[name], order, -1)
        out[weight] = np.take_along_axis(arrays[weight], order, -1)
    return out


def forward(sequence: Any, case: Mapping[str, Any], chunks: list[int], trace: bool) -> Arrays:
    """The case's rows: cached forwards, or a prefix and the kept rows of a window."""
    ids, parts, at = list(case["ids"]), [], 0
    if "rollback" in case:
        r = case["rollback"]
        before = sequence.forward(ids[: r["prefix"]], trace=trace)
        window = sequence.forward(r["window"], window=True, trace=trace)
        sequence.commit(r["keep"])
        width = r["prefix"] + r["keep"]
        kept = {k: v[: r["keep"], :width] if k.endswith(".select") else v[: r["keep"]] for k, v in window.items()}
        return joined([before, kept])
    for n in chunks:
        parts.append(sequence.forward(ids[at : at + n], trace=trace))
        at += n
    return joined(parts)


def drafts(sequence: Any, ids: list[int], rows: Arrays) -> Arrays:
    """The MTP head over the whole sequence, then its greedy recursion."""
    out: Arrays = {}
    hidden = rows["hyper"]
    if len(ids) > 1:
        history = sequence.draft(hidden[:-1], ids[1:])
        out = {"mtp.logits": history["logits"], "mtp.hyper": history["hyper"], **sequence.history()}
        del out["mtp.pooled"]
    wide, token, chain, logits = hidden[-1:], int(rows["logits"][-1].argmax()), [], []
    for _ in range(CHAIN):
        step = sequence.draft(wide, [token])
        wide, token = step["hyper"], int(step["logits"][-1].argmax())
        chain.append(token)
        logits.append(step["logits"][-1])
    return {**out, "mtp.chain": np.array(chain, np.int64), "mtp.chain_logits": np.stack(logits)}


def greedy(model: Any, prompt: list[int], count: int) -> NDArray[np.int64]:
    sequence = testing.Sequence(model)
    row, out = sequence.forward(prompt)["logits"][-1], []
    for _ in range(count):
        out.append(int(row.argmax()))
        row = sequence.forward([out[-1]])["logits"][-1]
    return np.array(out, np.int64)


def computed(model: Any, case: Mapping[str, Any], chunks: list[int], wanted: set[str]) -> Arrays:
    ids = list(case["ids"])
    sequence = testing.Sequence(model)
    rows = by_id(forward(sequence, case, chunks, any(n[0] == "L" or n == "final.mix" for n in wanted)))
    out = {**rows, **sequence.state(), "ids": np.array(ids, np.int64)}
    if any(n.startswith("mtp.") for n in wanted):
        out |= drafts(sequence, ids, rows)
    if "greedy.ids" in wanted:
        prompt = case["prompt"]
        out["greedy.ids"] = greedy(model, ids[:prompt], len(ids) - prompt)
    return out


def difference(name: str, got: Arrays, want: NDArray[Any]) -> str | None:
    """What is wrong with one array, or None."""
    if name not in got:
        return f"{name}: not computed here"
    have = got[name]
    if have.shape != want.shape:
        return f"{name}: shape {have.shape}, expected {want.shape}"
    if want.dtype.kind in "iub":
        wrong = int((have.astype(np.int64) != want.astype(np.int64)).sum())
        return f"{name}: {wrong} of {want.size} entries differ" if wrong else None
    error = float(np.abs(have.astype(np.float64) - want).max()) if want.size else 0.0
    return None if error <= TOLERANCE else f"{name}: max error {error:.3e}, at most {TOLERANCE:g}"


def judge(folder: Path, file: str, case: Mapping[str, Any]) -> list[str]:
    """Everything wrong with one entry of cases.json."""
    with np.load(folder / file) as data:
        gold = dict(data)
    skipped = {n for n in gold if n.startswith(("cut.", "bf16.")) or n in {"greedy.margin", "chunks"}}
    wanted = set(gold) - skipped
    gold = by_id({n: a for n, a in gold.items() if n in wanted}) | {n: gold[n] for n in skipped}
    model, wrong = load(folder / case["checkpoint"], True), []
    for chunks in [case["chunks"], *case.get("also_chunks", [])]:
        got = computed(model, case, chunks, wanted)
        where = "" if chunks == case["chunks"] else f"chunks {chunks}: "
        wrong += [where + d for n in sorted(wanted) if (d := difference(n, got, gold[n]))]
    return wrong


def bf16_errors(folder: Path, file: str, case: Mapping[str, Any]) -> tuple[float, float] | None:
    """Sums of |bfloat16 - float32| over the case's logits: ours and the recorded one's."""
    with np.load(folder / file) as data:
        if "bf16.logits" not in data:
            return None
        gold, theirs = data["logits"].astype(np.float64), data["bf16.logits"]
    ours = forward(testing.Sequence(load(folder / case["checkpoint"], False)), case, case["chunks"], False)["logits"]
    return float(np.abs(ours - gold).sum()), float(np.abs(theirs - gold).sum())


def judge_bf16(folder: Path, cases: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong with the bfloat16 run, by case."""
    errors = {f: e for f, c in cases.items() if (e := bf16_errors(folder, f, c)) is not None}
    wrong = {}
    for file, (ours, theirs) in errors.items():
        beside = [e for f, e in errors.items() if cases[f]["checkpoint"] == cases[file]["checkpoint"]]
        pooled_ours, pooled_theirs = (sum(column) for column in zip(*beside, strict=True))
        if ours > BF16_SLACK * theirs and pooled_ours > BF16_SLACK * pooled_theirs:
            wrong[file] = f"bf16.logits: mean error {ours / theirs:.2f} times the recorded, at most {BF16_SLACK}"
    return wrong


def run(folder: Path, report: Callable[[str], None] = print) -> tuple[int, int]:
    """Judge every entry; returns (passed, failed)."""
    cases = json.loads((folder / "cases.json").read_text())
    found: dict[str, list[str]] = {}
    for file, case in cases.items():
        try:
            found[file] = judge(folder, file, case)
        except Exception as error:  # one broken case must not hide the others
            found[file] = [f"{type(error).__name__}: {error}"]
    for file, text in judge_bf16(folder, {f: c for f, c in cases.items() if not found[f]}).items():
        found[file].append(text)
    failed = 0
    for file, wrong in found.items():
        failed += bool(wrong)
        for line in wrong:
            report(f"{file}: {line}")
    return len(cases) - failed, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    passed, failed = run(parser.parse_args().dir)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
