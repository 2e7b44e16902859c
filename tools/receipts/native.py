"""This engine's side of the receipts, and what both receipts share: opening, rows, comparison, the report."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import states

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))  # behind an installed one
import qwenmtp
from qwenmtp.bench.receipts import Receipts
from qwenmtp.settings import Settings
from qwenmtp.tensors import Tensor

ROOT = Path(__file__).resolve().parents[2]

Row = dict[str, Any]
Rows = dict[str, Row]
FINISH = {None: "length"}  # the reference's speculative loop has no name for a reached limit


def arguments(description: str, default_exits: Path | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, help="receipt directory to write (default: a temporary one)")
    parser.add_argument("--reference", metavar="PYTHON", help="run the pinned reference now, by a python that has it")
    parser.add_argument("--reference-rows", type=Path, metavar="FILE", help="rows that the reference wrote earlier")
    parser.add_argument(
        "--baseline", type=Path, metavar="RECEIPT", help="an earlier directory: every byte must be equal"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="compute type (default: by device)")
    parser.set_defaults(exits=default_exits)
    return parser.parse_args()


def params(temperature: float) -> qwenmtp.SamplingParams:
    return qwenmtp.SamplingParams(
        temperature=temperature, top_p=states.TOP_P, top_k=states.TOP_K, seed=states.SEED, draft="mirror"
    )


def describe(session: qwenmtp.Session) -> Row:
    """The live state as a receipt has it."""
    held = session.state()
    return state_row(session.export(), held["tokens"], held["history"])


def state_row(tensors: dict[str, Tensor], n: int, history: int) -> Row:
    described = []
    for name, t in tensors.items():
        bits = t.array
        values = (bits.astype(np.uint32) << 16).view(np.float32) if bits.dtype == np.uint16 else bits
        described.append(states.describe(name, values, t.dtype, bits.tobytes()))
    return {"N": n, "H": history, "tensors": described}


def turn(session: qwenmtp.Session, ids: Sequence[int], temperature: float, limit: int, **options: Any) -> Row:
    """One whole turn as a row."""
    for _ in session.generate(ids, params(temperature), max_tokens=limit, **options):
        pass
    done = session.last_turn
    assert done is not None
    seconds = {f"{name}_s": round(done.timing[key], 6) for name, key in (
        ("prefill", "prefill"), ("decode", "decode"), ("final", "final_commit"), ("total", "total")
    )}  # fmt: skip
    return {
        "prompt_ids": list(ids),
        "tokens": list(done.ids),
        "finish": done.finish,
        "stop_origin": done.stop_origin,
        "usage": done.usage,
        "final": done.final["committed"],
        "state": describe(session),
        "ple": done.stats["ple"],
        "timing": {"kind": "probe", **seconds},
    }


def open_model(path: Path, variables: dict[str, str], **overrides: Any) -> qwenmtp.Model:
    """A model under exactly these QWENMTP_* and MTPLX_* variables."""
    return qwenmtp.load(path, Settings.resolve(variables, pack=path, **overrides))


def facts(model: qwenmtp.Model) -> Row:
    """What of an open model goes into environment.json."""
    settings = model.settings.as_json()
    return {
        "settings": settings["fields"],
        "no_effect": sorted(settings["no_effect"]),
        "dtype": model.info()["dtype"],
        "geometry": model.info()["geometry"],
    }


def read_rows(path: Path) -> Rows:
    """Rows by case, of a .jsonl, a .jsonl.gz, or a receipt directory."""
    path = path / "receipts.jsonl" if path.is_dir() else path
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return {row["case"]: row for row in map(json.loads, text.splitlines())}


def reference_rows(args: argparse.Namespace, suite: str, dtype: str) -> Rows | None:
    """The reference's rows: recorded, run now in its own environment, or none."""
    if args.reference_rows:
        return read_rows(args.reference_rows)
    if not args.reference:
        return None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        command = [args.reference, str(ROOT / "tools/receipts/reference.py"), suite, str(args.model), str(out)]
        command += ["--dtype", dtype, *(["--exits", str(args.exits)] if args.exits else [])]
        env = {k: v for k, v in os.environ.items() if not k.startswith("QWENMTP_")}
        subprocess.run(command, check=True, env=env, stdout=sys.stderr)
        return read_rows(out)


class Report:
    """Rows and checks of one receipt."""

    def __init__(self, suite: str, receipts: Receipts):
        self.suite, self.receipts = suite, receipts
        self.ids: dict[str, str] = {}
        self.rows: Rows = {}

    def add(self, case: str, row: Row, engine: str = "qwenmtp") -> None:
        self.ids[case] = self.receipts.add(self.suite, case, engine=engine, **{
            k: v for k, v in row.items() if k not in ("suite", "case", "engine")
        })  # fmt: skip
        self.rows[case] = row

    def check(self, title: str, work: Callable[[], Iterable[str]], cases: Iterable[str] | None = None) -> None:
        """A check over cases (default: all); work yields what is wrong."""
        started = time.perf_counter()
        wrong = list(work())
        ids = [self.ids[case] for case in (self.ids if cases is None else cases)]
        self.receipts.check(
            title, "fail" if wrong else "pass", reason="; ".join(wrong[:5]), receipts=ids,
            seconds=time.perf_counter() - started,
        )  # fmt: skip
        print(f"{'FAIL' if wrong else 'ok'}  {title}" + "".join(f"\n      {text}" for text in wrong[:5]))

    def skip(self, title: str, reason: str) -> None:
        self.receipts.check(title, "skip", reason=reason)
        print(f"skip  {title}: {reason}")

    def against_reference(self, reference: Rows | None, name_of: Callable[[str], str | None]) -> None:
        """Ids, usage, endings and states against the reference's. name_of: our case -> its case, or None."""
        title = "ids, endings and states equal MTPLX 2.12.2's"
        if reference is None:
            self.skip(title, "no --reference and no --reference-rows")
            return
        pairs = {case: name_of(case) for case in self.rows}
        worst = [0.0]

        def work() -> Iterable[str]:
            for case, theirs in pairs.items():
                if theirs is None:
                    continue
                if theirs not in reference:
                    yield f"{case}: the reference has no row {theirs!r}"
                    continue
                want, got = reference[theirs], self.rows[case]
                for key in ("prompt_ids", "tokens", "stop_origin", "final"):
                    if want[key] != got[key] and not (key == "stop_origin" and got["mode"] == "ar"):
                        yield f"{case}: {key} {got[key]}, expected {want[key]}"
                if FINISH.get(want["finish"], want["finish"]) != got["finish"]:
                    yield f"{case}: finish {got['finish']}, expected {want['finish']}"
                if want["usage"] != {k: got["usage"][k] for k in want["usage"]}:
                    yield f"{case}: usage {got['usage']}, expected {want['usage']}"
                found, share = states.value_difference(want["state"], got["state"])
                worst[0] = max(worst[0], share)
                if found:
                    yield f"{case}: {found}"

        self.check(title, work, [case for case, theirs in pairs.items() if theirs is not None])
        print(f"      largest difference of a tensor: {worst[0]:.2f} of the tolerance")

    def against_baseline(self, baseline: Path | None) -> None:
        """Every id and every byte of an earlier receipt of this engine."""
        if baseline is None:
            return
        earlier = read_rows(baseline)

        def work() -> Iterable[str]:
            for case, row in self.rows.items():
                if case not in earlier:
                    yield f"{case}: not in the baseline"
                elif row["tokens"] != earlier[case]["tokens"]:
                    yield f"{case}: ids {row['tokens']}, expected {earlier[case]['tokens']}"
                elif found := states.hash_difference(earlier[case]["state"], row["state"]):
                    yield f"{case}: {found}"

        self.check(f"ids and state bytes equal the baseline {baseline}", work)

    def source_scan(self) -> None:
        """The obsolete flag is named where it is documented as obsolete, and nowhere else in the product."""

        def work() -> Iterable[str]:
            for path in [*(ROOT / "csrc").rglob("*.*"), *(ROOT / "metal").iterdir(), *(ROOT / "python").rglob("*.py")]:
                if path.name != "settings_legacy.py" and re.search("AR_?PIPELINE", path.read_text(), re.IGNORECASE):
                    yield f"{path.relative_to(ROOT)} names the obsolete flag"

        self.check("no reference to the obsolete pipeline flag in the source", work, [])

    def close(self) -> int:
        found = self.receipts.close()
        print(f"{self.receipts.folder}: {'red' if found else 'green'}, {len(self.rows)} receipts")
        for text in found:
            print(f"      {text}")
        return 1 if found else 0
