"""Write tests/golden/model and tests/golden/mtp_chain.

    make_goldens.py weights DIR     released checkpoints, MTPLX packs     (MTPLX environment)
    make_goldens.py vlm DIR         mlx-vlm conversions                   (mlx-vlm environment)
    make_goldens.py golden DIR      float32 arrays from PyTorch           (torch environment)
    make_goldens.py second DIR      MTPLX on the CPU: cross-check, bf16   (MTPLX environment)
    make_goldens.py third DIR       mlx-vlm on the CPU: cross-check       (mlx-vlm environment)
    make_goldens.py chain DIR OUT   draft chains of depth 5               (torch environment)

Run in this order. ONLY=checkpoint,... limits a step to some checkpoints. The tables are golden_cases.py; the
format is that of tools/golden.py. A prompt is redrawn until every selection, every arg-max and MTPLX agree clearly.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from golden_cases import CHECKPOINTS, Case, cases, draw_ids

CLEAR_CUT = 5e-5  # relative gap at every top-k cut; two float32 implementations differ by about 1e-6
CLEAR_TOP = 2e-3  # gap between the two best logits wherever an arg-max is recorded
AGREE = 5e-5  # MTPLX float32 against PyTorch float32, every array


def chosen() -> list[str]:
    only = os.environ.get("ONLY")
    return [name for name in CHECKPOINTS if not only or name in only.split(",")]


def read_table(root: Path) -> dict[str, Any]:
    path = root / "cases.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_table(root: Path, table: dict[str, Any]) -> None:
    """One case a line, in the order of the tables."""
    order = [f"{c}.{n}.npz" for c in CHECKPOINTS for n in cases(c)]
    lines = [f"{json.dumps(f)}: {json.dumps(table[f])}" for f in order if f in table]
    (root / "cases.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def write_source(name: str, out: Path) -> None:
    import make_tiny

    c = CHECKPOINTS[name]
    make_tiny.make(
        out, seed=c.seed, dtype=c.dtype, overrides=c.geometry, packed=c.packed, shards=c.shards, edit=c.edit
    )  # fmt: skip


def weights(root: Path) -> None:
    for name in chosen():
        c = CHECKPOINTS[name]
        if c.vlm:
            continue
        if c.recipe is None:
            write_source(name, root / name)
            continue
        from mtplx.commands.forge_qwen4_exp import named_recipe, run_lane

        with tempfile.TemporaryDirectory() as source:
            write_source(name, Path(source))
            recipe = named_recipe(c.recipe) if isinstance(c.recipe, str) else c.recipe
            run_lane(Path(source), root / name, recipe=recipe)


def vlm(root: Path) -> None:
    import vlm_model

    for name in chosen():
        if widths := CHECKPOINTS[name].vlm:
            with tempfile.TemporaryDirectory() as source:
                write_source(name, Path(source))
                vlm_model.convert(Path(source), root / name, *widths)


# ------------------------------------------------------------------ PyTorch
def top_gap(rows: np.ndarray) -> float:
    best = np.sort(np.atleast_2d(rows), axis=-1)[:, -2:]
    return float((best[:, 1] - best[:, 0]).min())


def clear(out: dict[str, np.ndarray], extra: dict[str, np.ndarray]) -> bool:
    gaps = [top_gap(out["logits"][-1]), top_gap(out["mtp.chain_logits"]), *extra.get("greedy.margin", ())]
    return min(gaps) > CLEAR_TOP and min(out["cut.qsa"], out["cut.router"]) > CLEAR_CUT


def attempt(models: Any, case: Case, ids: list[int]) -> tuple[list[int], dict[str, Any], dict[str, np.ndarray]]:
    """The ids that were forwarded, the entry of cases.json, the arrays."""
    import reference

    entry, extra, chunks = {}, {}, list(case.chunks) or [len(ids)]
    if case.rollback:
        prefix, _, keep = case.rollback
        entry["rollback"] = {"prefix": prefix, "window": ids[prefix:], "keep": keep}
        ids, chunks = ids[: prefix + keep], [prefix] + [1] * keep
    if case.greedy:
        prompt, margins = len(ids), []
        for _ in range(case.greedy):
            row = reference.run(models, ids, drafts=1)["logits"][-1]
            margins.append(top_gap(row))
            ids = [*ids, int(row.argmax())]
        chunks = [prompt] + [1] * case.greedy
        entry["prompt"] = prompt
        extra = {"greedy.ids": np.array(ids[prompt:], np.int64), "greedy.margin": np.array(margins, np.float32)}
    if case.also:
        entry["also_chunks"] = [list(split) for split in case.also]
    out = reference.run(models, ids, chunks, full=case.full)
    entry = {"ids": ids, "chunks": chunks, **entry}
    entry |= {k: float(out[k]) for k in ("cut.qsa", "cut.router")} | {"cut.zero_ties": int(out["cut.zero_ties"])}
    return ids, entry, out | extra


def golden(root: Path) -> None:
    import reference

    table = read_table(root)
    for name in chosen():
        models = reference.build_models(root / name)
        for label, case in cases(name).items():
            for turn in range(60):
                ids = draw_ids(case, CHECKPOINTS[name].geometry, f"{name} {label} {turn}")
                _, entry, out = attempt(models, case, ids)
                if clear(out, out):
                    break
            else:
                raise SystemExit(f"{name}.{label}: every draw had a near tie")
            file = f"{name}.{label}.npz"
            table[file] = {"checkpoint": name, **entry}
            np.savez_compressed(root / file, **{k: v for k, v in out.items() if case.keep(k)})
            print(file, f"draw {turn}", {k: v for k, v in entry.items() if k.startswith("cut")}, flush=True)
        write_table(root, table)


def chain(root: Path, out: Path) -> None:
    """Greedy draft recursion of depth 5; its first k rows are the chain of depth k."""
    import reference

    out.mkdir(parents=True, exist_ok=True)
    arrays, table = {}, {}
    for name in ("small", "wide", "odd", "mixed"):
        models = reference.build_models(root / name)
        for length in (1, 2, 13, 19, 41):  # 19: the chain crosses the trunk budget of the small checkpoints
            label = f"{name}.{length}"
            for turn in range(60):
                ids = draw_ids(Case(length), CHECKPOINTS[name].geometry, f"chain {label} {turn}")
                got = reference.run(models, ids, drafts=5)
                if clear(got, {}):
                    break
            else:
                raise SystemExit(f"{label}: every draw had a near tie")
            table[label] = {"checkpoint": name, "ids": ids, "first": int(got["logits"][-1].argmax())}
            arrays[f"{label}.chain"], arrays[f"{label}.chain_logits"] = got["mtp.chain"], got["mtp.chain_logits"]
    np.savez_compressed(out / "chains.npz", **arrays)
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table.items())
    (out / "cases.json").write_text("{\n" + lines + "\n}\n")


# ------------------------------------------------------------------ MTPLX
def second(root: Path) -> None:
    import mlx.core as mx
    from mtplx_model import load, run

    mx.set_default_device(mx.cpu)
    table = read_table(root)
    for name in chosen():
        if CHECKPOINTS[name].vlm:
            continue
        full, half = load(root / name, mx.float32), load(root / name, mx.bfloat16)
        for label, case in cases(name).items():
            file = f"{name}.{label}.npz"
            entry, gold = table[file], dict(np.load(root / file))
            got = run(full, entry["ids"], entry["chunks"])
            worst = max((float(np.abs(v - gold[k].astype(np.float64)).max()), k) for k, v in got.items() if k in gold)
            entry["mtplx_f32_max_abs"] = worst[0]
            if worst[0] > AGREE:
                raise SystemExit(f"{file}: MTPLX differs, {worst}")
            if case.bf16:
                rows = run(half, entry["ids"], entry["chunks"])
                for key in ("logits", "mtp.logits"):
                    if key in rows:
                        gold[f"bf16.{key}"] = rows[key]
                        error = np.abs(rows[key] - gold[key])
                        entry[f"bf16.{key}.max"], entry[f"bf16.{key}.mean"] = float(error.max()), float(error.mean())
                np.savez_compressed(root / file, **gold)
            print(file, worst, entry.get("bf16.logits.mean"), flush=True)
        write_table(root, table)


# ------------------------------------------------------------------ mlx-vlm
def third(root: Path) -> None:
    """Prompts within the budget only: mlx-vlm has another tie rule."""
    import vlm_model

    table = read_table(root)
    for name in chosen():
        if not CHECKPOINTS[name].vlm:
            continue
        model = vlm_model.load(root / name)
        for label in cases(name):
            file = f"{name}.{label}.npz"
            ids, budget = table[file]["ids"], CHECKPOINTS[name].geometry["indexer_budget"]
            if len(ids) > budget:
                continue
            worst = float(np.abs(vlm_model.logits(model, ids) - np.load(root / file)["logits"]).max())
            if worst > AGREE:
                raise SystemExit(f"{file}: mlx-vlm differs by {worst}")
            table[file]["vlm_f32_max_abs"] = worst
            print(file, worst, flush=True)
    write_table(root, table)


if __name__ == "__main__":
    steps = {"weights": weights, "vlm": vlm, "golden": golden, "second": second, "third": third, "chain": chain}
    steps[sys.argv[1]](*map(Path, sys.argv[2:]))
