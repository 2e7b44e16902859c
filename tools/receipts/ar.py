"""The AR receipt of a model: one answer and the next, plainly decoded, the same on every path that must not matter.

    python tools/receipts/ar.py MODEL [--out DIR] [--reference PYTHON | --reference-rows FILE] [--baseline DIR]

A cold prompt of three tokens and eight answered at T .6 and 1, the warm turn behind it, a turn cancelled after three
callbacks and its retry; n-gram table streamed and resident, the obsolete flag unset and 1, evaluation sync and async.
Writes environment.json, receipts.jsonl and checks.json; exit code 1 if a check fails. The reference's side is
reference.py, in its own environment (tools/oracle/README.md).
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import states
from native import Report, arguments, describe, facts, open_model, params, reference_rows, turn

from qwenmtp.bench.receipts import Receipts

# Streams of the released 72 GB pack (reference/sessions.md 6.3), and how those of the retired pipeline began.
KNOWN = {0.6: [314, 279, 198, 2, 20732, 198, 2, 198], 1.0: [314, 279, 198, 2, 20732, 20086, 198, 2053]}
RETIRED = ([314, 279, 35067, 82], [314, 279, 695, 47])
RELEASED = {"vocab_size": 248_320, "hidden_size": 2560, "n_experts": 512}


def turns(model: Any, evaluation: str, temperature: float) -> Iterable[tuple[str, dict[str, Any]]]:
    """Cold, warm, retry: the last after a cancelled attempt that must leave no trace."""
    prompt, suffix = states.prompt_of(model.info()["geometry"]["vocab_size"])
    session = model.session(mode="ar", async_eval=evaluation == "async")
    yield "cold", turn(session, prompt, temperature, states.TOKENS, ignore_stop=True)
    calm, longer = session.fork(), [*session.ids, *suffix]
    yield "warm", turn(calm, longer, temperature, states.TOKENS, ignore_stop=True)
    before = describe(session)
    for n, _ in enumerate(session.generate(longer, params(temperature), max_tokens=states.TOKENS, ignore_stop=True), 1):
        if n == states.CANCEL_AFTER:
            session.cancel()
    cut = {"cancelled": session.last_turn.finish, "state_kept": states.hash_difference(before, describe(session))}
    yield "retry", {**turn(session, longer, temperature, states.TOKENS, ignore_stop=True), "notes": cut}


def main() -> int:
    args = arguments(__doc__)
    out = args.out or Path(tempfile.mkdtemp(prefix="qwenmtp-ar-"))
    dtype = {} if args.dtype is None else {"dtype": args.dtype}
    report = None
    for residency, flag in itertools.product(("ssd", "resident"), (None, "1")):
        with open_model(args.model, {states.FLAG: flag} if flag else {}, ple_residency=residency, **dtype) as model:
            if report is None:
                report = Report("ar", Receipts(out, args.model, dict(os.environ), facts(model)))
                geometry, compute = model.info()["geometry"], model.info()["dtype"]
            for evaluation, temperature in itertools.product(("sync", "async"), states.TEMPERATURES):
                where = {"mode": "ar", "temperature": temperature, "flag": flag, "eval": evaluation}
                for name, row in turns(model, evaluation, temperature):
                    row |= {**where, "residency": residency}
                    report.add(f"{name} T={temperature} flag={flag} {evaluation} {residency}", row)
    judge(report, geometry)
    report.source_scan()
    # The reference always streams its table.
    report.against_reference(reference_rows(args, "ar", compute), lambda case: case.replace(" resident", " ssd"))
    report.against_baseline(args.baseline)
    return report.close()


def judge(report: Report, geometry: dict[str, Any]) -> None:
    """What the rows must have in common, and what each must be."""
    rows = report.rows
    first = {(c.split()[0], r["temperature"]): r for c, r in reversed(rows.items())}

    def same() -> Iterable[str]:
        for case, row in rows.items():
            want = first["warm" if case.startswith("retry") else case.split()[0], row["temperature"]]
            if row["tokens"] != want["tokens"]:
                yield f"{case}: ids {row['tokens']}, expected {want['tokens']}"
            if found := states.hash_difference(want["state"], row["state"]):
                yield f"{case}: {found}"

    def lengths() -> Iterable[str]:
        for case, row in rows.items():
            n, cold = len(row["prompt_ids"]) + states.TOKENS, case.startswith("cold")
            if (row["state"]["N"], row["state"]["H"], row["final"]) != (n, 0, True):
                yield f"{case}: N {row['state']['N']}, committed {row['final']}, expected {n}"
            if row["usage"]["cached"] != (0 if cold else len(row["prompt_ids"]) - 1):
                yield f"{case}: {row['usage']['cached']} tokens restored"

    def cancelled() -> Iterable[str]:
        for case, row in rows.items():
            if "notes" in row and row["notes"] != {"cancelled": "cancelled", "state_kept": None}:
                yield f"{case}: {row['notes']}"

    def residency() -> Iterable[str]:
        for case, row in rows.items():
            if (row["ple"]["residency"], row["ple"]["staging"]) != (row["residency"], True):
                yield f"{case}: {row['ple']}"

    def streams() -> Iterable[str]:
        for case, row in rows.items():
            if any(row["tokens"][: len(r)] == r for r in RETIRED):
                yield f"{case}: the stream of the retired pipeline"
            if released and case.startswith("cold") and row["tokens"] != KNOWN[row["temperature"]]:
                yield f"{case}: ids {row['tokens']}, expected {KNOWN[row['temperature']]}"

    released = all(geometry[k] == v for k, v in RELEASED.items())
    report.check("residency, flag and evaluation change no id and no byte of the state", same)
    report.check("the state holds prompt and answer; a warm turn restores all but its suffix", lengths)
    report.check("a turn cancelled after three callbacks leaves the state as it was", cancelled)
    report.check("staging on, the table where it was asked to be, in every turn", residency)
    report.check(
        "the released pack's known streams, never the retired ones" if released else "never the retired streams",
        streams,
    )


if __name__ == "__main__":
    sys.exit(main())
