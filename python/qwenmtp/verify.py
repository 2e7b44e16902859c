"""What a user can check on their own machine: drafting changes no answer and no law, and no path changes a state."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from qwenmtp.errors import QwenMtpError
from qwenmtp.model import Model
from qwenmtp.request import Depth, Mode
from qwenmtp.sampling import SamplingParams
from qwenmtp.sessions import Session

PROMPTS = ("def main(argv):\n", "import os\nimport sys\n\n", "The function returns a list of")
TOKENS = 32
GREEDY = SamplingParams(temperature=0)
# Two forwards of different width may differ in last bits on an accelerator: a first difference at a smaller gap between
# the two best log-probabilities is reported and not failed.
NEAR_TIE = {"float32": 1e-3, "bfloat16": 6e-2}
LAW_TOKENS = 3
LAW_TOP_K = 2
LAW_TEMPERATURE = 3.0  # flattens two candidates enough that every continuation is expected
LAW_SEEDS = 300


@dataclass(frozen=True, slots=True)
class Check:
    """One row of a report.

    Attributes:
        name: What was compared.
        passed: Whether everything was as claimed.
        cases: Comparisons made.
        detail: The first difference, or the numbers behind a pass.
    """

    name: str
    passed: bool
    cases: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The checks of one run.

    Attributes:
        checks: In the order they ran.
        seconds: The whole run.
    """

    checks: tuple[Check, ...]
    seconds: float = field(compare=False)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(c.passed for c in self.checks)

    def to_json(self) -> dict[str, Any]:
        """All fields and the verdict, JSON-ready."""
        return {"passed": self.passed, **asdict(self)}


class _Case(NamedTuple):
    """One comparison, or `n` that share a verdict; a text beside `ok` is a remark."""

    ok: bool
    text: str = ""
    n: int = 1


def verify(model: Model, on_check: Callable[[Check], None] | None = None) -> VerifyReport:
    """Run every check; each is deterministic given the model and the machine.

    An error of the engine fails the check it happens in; the others still run.

    Args:
        model: An open model; its sessions are not touched.
        on_check: Called with each finished check.
    """
    started, checks = time.perf_counter(), []
    for name, cases in _checks(model):
        checks.append(_judged(name, cases))
        if on_check is not None:
            on_check(checks[-1])
    return VerifyReport(tuple(checks), time.perf_counter() - started)


def _checks(model: Model) -> Iterator[tuple[str, Iterator[_Case]]]:
    """Name and cases of every check; the cases run when they are read."""
    depths = range(1, 6) if model.has_mtp else ()
    for depth in depths:
        yield f"greedy drafting at depth {depth} = greedy plain decoding", _greedy(model, depth)
    modes: tuple[Mode, ...] = ("ar", "mtp") if model.has_mtp else ("ar",)
    for mode in modes:
        yield f"{mode}: a warm turn = a cold one, ids and state", _warm(model, mode)
        yield f"{mode}: prompts read in chunks of 1, 3, 16, 64, ids and state", _chunks(model, mode)
        yield f"{mode}: a cancelled answer changes nothing, its retry is the same", _retry(model, mode)
        yield f"{mode}: a saved and restored state goes on as the unsaved one", _restored(model, mode)
    yield "ar: sampled law = exact enumeration", _law(model, "ar", 1)
    for depth in depths[:3]:
        yield f"mtp depth {depth}: sampled law = exact enumeration", _law(model, "mtp", depth)


def _judged(name: str, cases: Iterator[_Case]) -> Check:
    run, wrong, remark = 0, "", ""
    try:
        for case in cases:
            run += case.n
            remark = remark or case.text
            if not case.ok:
                wrong = wrong or case.text
    except QwenMtpError as error:
        wrong = wrong or f"{error.code}: {error}"
    return Check(name, not wrong, run, wrong or remark)


def _session(model: Model, mode: Mode, depth: Depth = 3, **overrides: Any) -> Session:
    return model.session(mode=mode, depth=depth, context_copy=False, **overrides)


def _answer(session: Session, ids: Sequence[int], params: SamplingParams = GREEDY, n: int = TOKENS) -> tuple[int, ...]:
    for _ in session.generate(ids, params, max_tokens=n, ignore_stop=True):
        pass
    assert session.last_turn is not None
    return session.last_turn.ids


def _prompts(model: Model) -> list[list[int]]:
    return [model.tokenizer.encode(text) for text in PROMPTS]


def _greedy(model: Model, depth: int) -> Iterator[_Case]:
    for ids in _prompts(model):
        plain, drafted = _answer(_session(model, "ar"), ids), _answer(_session(model, "mtp", depth), ids)
        yield _same_ids(model, ids, plain, drafted)


def _warm(model: Model, mode: Mode) -> Iterator[_Case]:
    for ids in _prompts(model):
        warm = _session(model, mode)
        _answer(warm, ids, n=9)
        longer = [*warm.ids, *ids[:4]]
        cold = _session(model, mode)
        yield _same_ids(model, longer, _answer(cold, longer), _answer(warm, longer))
        yield _same_state(cold, warm)


def _chunks(model: Model, mode: Mode) -> Iterator[_Case]:
    ids = [i for prompt in _prompts(model) for i in prompt] * 3
    on_cpu = model.info()["device"] == "cpu"  # elsewhere a chunk's width may change last bits
    whole = _session(model, mode)
    want = _answer(whole, ids)
    for chunk in (1, 3, 16, 64):
        pieces = _session(model, mode, prefill_chunk=chunk)
        yield _same_ids(model, ids, want, _answer(pieces, ids))
        yield _same_state(whole, pieces) if on_cpu else _same_lengths(whole, pieces)


def _retry(model: Model, mode: Mode) -> Iterator[_Case]:
    for ids in _prompts(model):
        disturbed, calm = _session(model, mode), _session(model, mode)
        _answer(disturbed, ids, n=5)
        _answer(calm, ids, n=5)
        longer = [*disturbed.ids, *ids[:3]]
        for n, _ in enumerate(disturbed.generate(longer, GREEDY, max_tokens=4 * TOKENS, ignore_stop=True)):
            if n == 2:
                disturbed.cancel()
        yield _same_state(calm, disturbed)
        yield _same_ids(model, longer, _answer(calm, longer), _answer(disturbed, longer))


def _restored(model: Model, mode: Mode) -> Iterator[_Case]:
    """Every byte of the state, then ids and acceptance of the same seed, then the state again."""
    params = SamplingParams(temperature=0.8, seed=7)
    with tempfile.TemporaryDirectory(prefix="qwenmtp-verify-") as folder:
        for n, ids in enumerate(_prompts(model)):
            unsaved, path = model.session(mode=mode), Path(folder, str(n))
            _answer(unsaved, ids, params, n=9)
            unsaved.save(path)
            restored = model.restore(path)
            yield _same_state(unsaved, restored)
            longer = [*unsaved.ids, *ids[:4]]
            want, got = _acceptance(unsaved, longer, params), _acceptance(restored, longer, params)
            yield _Case(want == got, "" if want == got else f"{want} or {got}")
            yield _same_state(unsaved, restored)


def _acceptance(session: Session, ids: Sequence[int], params: SamplingParams) -> tuple[tuple[int, ...], int, int]:
    answer = _answer(session, ids, params)
    assert session.last_turn is not None
    stats = session.last_turn.stats
    return answer, stats["drafted_tokens"], stats["accepted_drafts"]


def _law(model: Model, mode: Mode, depth: int) -> Iterator[_Case]:
    ids = _prompts(model)[0]
    base = _session(model, mode, depth)
    _answer(base, ids[:-1], n=0)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(LAW_SEEDS):
        params = SamplingParams(temperature=LAW_TEMPERATURE, top_k=LAW_TOP_K, top_p=1.0, seed=seed)
        counts[_answer(base.fork(), ids, params, LAW_TOKENS)] += 1
    yield _chi_square(_exact_law(model, ids), counts)


def _exact_law(model: Model, ids: Sequence[int]) -> dict[tuple[int, ...], float]:
    """Probability of every continuation under the law's sampler, from plain decoding's own rows."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LAW_TOKENS):
        longer: dict[tuple[int, ...], float] = {}
        for prefix, mass in law.items():
            (first,) = _session(model, "ar").generate(
                [*ids, *prefix], GREEDY, max_tokens=1, ignore_stop=True, logprobs=LAW_TOP_K
            )
            top = first.logprobs[0][1]
            weights = {token: math.exp(value / LAW_TEMPERATURE) for token, value in top}
            total = sum(weights.values())
            longer |= {(*prefix, token): mass * weight / total for token, weight in weights.items()}
        law = longer
    return law


def _chi_square(law: dict[tuple[int, ...], float], counts: Counter[tuple[int, ...]]) -> _Case:
    """Passes below the 99.9 % bound; cells that expect fewer than 5 answers are one cell."""
    runs = sum(counts.values())
    outside = [ids for ids in counts if ids not in law]
    if outside:
        return _Case(False, f"answer {list(outside[0])} has probability 0", runs)
    cells = [(counts[ids], runs * p) for ids, p in law.items() if runs * p >= 5]
    rest = (runs - sum(c for c, _ in cells), runs - sum(e for _, e in cells))
    if rest[1] > 0:
        cells.append(rest)
    value = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    free = max(1, len(cells) - 1)
    bound = free * (1 - 2 / (9 * free) + 3.0902 * math.sqrt(2 / (9 * free))) ** 3  # Wilson and Hilferty
    return _Case(value <= bound, f"chi-square {value:.1f} on {free} degrees, at most {bound:.1f}", runs)


def _same_ids(model: Model, prompt: Sequence[int], want: Sequence[int], got: Sequence[int]) -> _Case:
    """Whether two greedy answers are the same, up to a near tie, and where they part."""
    if want == got:
        return _Case(True)
    at = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), min(len(want), len(got)))
    (row,) = _session(model, "ar").generate([*prompt, *want[:at]], GREEDY, max_tokens=1, ignore_stop=True, logprobs=2)
    (_, best), (_, second) = row.logprobs[0][1]
    near = best - second < NEAR_TIE[model.info()["dtype"]]
    text = f"token {at}: {list(want[at : at + 1])} or {list(got[at : at + 1])}, margin {best - second:.2e}"
    return _Case(near, f"near tie, {text}" if near else text)


def _same_state(a: Session, b: Session) -> _Case:
    found = a.first_difference(b)
    return _Case(found is None, found or "")


def _same_lengths(a: Session, b: Session) -> _Case:
    same = a.state() == b.state()
    return _Case(same, "" if same else f"{a.state()} or {b.state()}")
