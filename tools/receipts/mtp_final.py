"""The MTP receipt of a model: whatever ends a speculative answer, the state is the one that teacher forcing leaves.

    python tools/receipts/mtp_final.py MODEL [--out DIR] [--reference PYTHON | --reference-rows FILE] [--baseline DIR]

24 endings (depths 1 to 3, T 0 and .6, limits 1, 2, 5, 9) and 12 answers that the first primary ends (at the limit, as a
stop); each state compared with its teacher's, saved, read back, and answered from; and the recorded exit matrix with
scripted logits. Writes environment.json, receipts.jsonl and checks.json; exit code 1 if a check fails. The reference's
side is reference.py, in its own environment (tools/oracle/README.md).
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import states
from native import ROOT, Report, Row, arguments, facts, open_model, params, reference_rows, state_row

from qwenmtp import _core
from qwenmtp.bench.receipts import Receipts
from qwenmtp.tensors import as_tensors

sys.path.insert(0, str(ROOT / "tools"))
import replay

EXITS = ROOT / "tests/golden/decode/mtp_exits.jsonl.gz"
WARM_TOKENS = 4
FILE, IDENTITY, OWNER = "state.qwmtkv", bytes(32), bytes(32)


class Runner:
    """Turns on the core itself: stop ids of one turn, and states outside a session."""

    def __init__(self, model: Any):
        self._engine, self.core = model._engine, model._engine.core

    def state(self) -> Any:
        return self._engine.run(lambda: _core.State(self.core, True))

    def turn(self, state: Any, ids: list[int], temperature: float, limit: int, **options: Any) -> Row:
        s = self._engine.resolve(params(temperature))
        given = {
            "target": (s.temperature, s.top_p, s.top_k, 0.0, 0.0), "seed": s.seed, "max_tokens": limit,
            "speculate": True, "context_copy": False, **options,
        }  # fmt: skip
        decoder = self._engine.run(lambda: _core.Decoder(self.core, state, ids, given))
        started = time.perf_counter()
        while not decoder.done:
            self._engine.run(decoder.step)
        refused = self._engine.run(decoder.finish)
        stats = decoder.statistics
        return {
            "mode": "mtp",
            "prompt_ids": ids,
            "tokens": list(decoder.tokens),
            "finish": decoder.finish_reason,
            "stop_origin": decoder.stop_origin if decoder.finish_reason == "stop" else None,
            "usage": {"prompt": len(ids), "cached": stats["cached_tokens"], "completion": len(decoder.tokens)},
            "final": not refused,
            "state": state_row(as_tensors(self._engine.run(state.tensors)), len(state), state.history_len),
            "timing": {"kind": "probe", "total_s": round(time.perf_counter() - started, 6)},
        }

    def teacher_difference(self, state: Any) -> str | None:
        """Where the state differs from the one that forwarding its ids one by one leaves."""
        teacher = self.state()
        self.turn(teacher, list(state.ids), 0.0, 0, prefill_chunk=1)
        found: str | None = self._engine.run(lambda: state.first_difference(teacher))
        return found

    def reopened(self, state: Any, folder: int) -> Any:
        """The state after a way through a file."""

        def through() -> Any:
            image = _core.StateImage(self.core, state, "length", "{}")
            image.write(folder, FILE, IDENTITY, OWNER, "none")
            return _core.load_state(self.core, _core.CheckpointFile(folder, FILE), IDENTITY, OWNER)

        return self._engine.run(through)


def cases(runner: Runner, prompt: list[int]) -> Iterator[tuple[str, int, float, int, list[int]]]:
    """(name, depth, temperature, limit, stop ids); named as reference.mtp_cases names them."""
    for depth, temperature in itertools.product(states.DEPTHS, states.MTP_TEMPERATURES):
        for limit in states.LIMITS:
            yield f"ending depth {depth} T={temperature} limit {limit}", depth, temperature, limit, []
        primary = runner.turn(runner.state(), prompt, temperature, 1, depth=depth)["tokens"]
        yield f"first primary at the limit, depth {depth} T={temperature}", depth, temperature, 1, []
        yield f"first primary is a stop, depth {depth} T={temperature}", depth, temperature, 9, primary


def run_cases(runner: Runner, report: Report, residency: str, vocab: int) -> None:
    prompt, suffix = states.prompt_of(vocab)
    with tempfile.TemporaryDirectory() as path:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name, depth, temperature, limit, stops in cases(runner, prompt):
                where = {"depth": depth, "temperature": temperature, "limit": limit, "residency": residency}
                state = runner.state()
                row = runner.turn(state, prompt, temperature, limit, depth=depth, stops=stops)
                report.add(name, row | where | {"equality": equality(runner, state)})
                again = runner.reopened(state, folder)
                ids = [*again.ids, *suffix]
                row = runner.turn(again, ids, temperature, WARM_TOKENS, depth=depth)
                report.add(f"{name}, warm", row | where | {"equality": equality(runner, again)})
        finally:
            os.close(folder)


def equality(runner: Runner, state: Any) -> Row:
    found = runner.teacher_difference(state)
    return {"against": "teacher forcing", "result": found is None, "first_difference": found}


def judge(report: Report) -> None:
    """What each row must be."""
    rows = report.rows

    def each(wrong: Callable[[str, Row], str | None]) -> Callable[[], Iterable[str]]:
        return lambda: (f"{case}: {found}" for case, row in rows.items() if (found := wrong(case, row)))

    def lengths(_case: str, row: Row) -> str | None:
        n = len(row["prompt_ids"]) + len(row["tokens"])
        got = (row["state"]["N"], row["state"]["H"], row["final"])
        return None if got == (n, n - 1, True) else f"N, history, committed {got}, expected {(n, n - 1, True)}"

    def ends(case: str, row: Row) -> str | None:
        first = case.startswith("first primary") and not case.endswith("warm")
        stop = first and "is a stop" in case
        want = ("stop", "primary") if stop else ("length", None)
        n = 1 if first else WARM_TOKENS if case.endswith("warm") else row["limit"]
        got = (row["finish"], row["stop_origin"])
        return None if got == want and len(row["tokens"]) == n else f"{got}, {len(row['tokens'])} tokens"

    def restored(case: str, row: Row) -> str | None:
        want = len(row["prompt_ids"]) - 1 if case.endswith("warm") else 0
        return None if row["usage"]["cached"] == want else f"{row['usage']['cached']} tokens restored, expected {want}"

    report.check("every tensor equals teacher forcing", each(lambda _, row: row["equality"]["first_difference"]))
    report.check("the trunk holds N tokens and the history N - 1; nothing is pending", each(lengths))
    report.check("the answer ends where and why it should", each(ends))
    report.check("a state read back from its file serves all but the suffix", each(restored))


def exits() -> Iterable[str]:
    """The scripted exits, as the reference recorded them."""
    for record in replay.read(EXITS):
        if (reason := replay.check(record)) is not None:
            yield f"{record['id']}: {reason}"


def main() -> int:
    args = arguments(__doc__, EXITS)
    out = args.out or Path(tempfile.mkdtemp(prefix="qwenmtp-mtp-"))
    with open_model(args.model, {}, **({} if args.dtype is None else {"dtype": args.dtype})) as model:
        compute = model.info()["dtype"]
        report = Report("mtp", Receipts(out, args.model, dict(os.environ), facts(model)))
        run_cases(Runner(model), report, model.settings.ple.residency, model.info()["geometry"]["vocab_size"])
    judge(report)
    report.check("the exit matrix with scripted logits, record by record", exits, [])
    report.source_scan()
    reference = reference_rows(args, "mtp", compute)
    again = (reference or {}).pop("exit matrix", None)
    if again is not None:
        report.check("the reference leaves by the recorded exits", lambda: again["wrong"], [])
    report.against_reference(reference, lambda case: case)
    report.against_baseline(args.baseline)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
