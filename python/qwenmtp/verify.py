"""What a user can check on their own machine: drafting changes no answer and no law, and no path changes a state."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from qwenmtp.model import Model
from qwenmtp.sampling import SamplingParams
from qwenmtp.sessions import Depth, Mode, Session

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


def verify(model: Model, on_check: Callable[[Check], None] | None = None) -> VerifyReport:
    """Run every check; each is deterministic given the model and the machine.

    Args:
        model: An open model; its sessions are not touched.
        on_check: Called with each finished check.
    """
    started, checks = time.perf_counter(), []
    for check in _checks(model):
        checks.append(check)
        if on_check is not None:
            on_check(check)
    return VerifyReport(tuple(checks), time.perf_counter() - started)


def _checks(model: Model) -> Iterator[Check]:
    if model.has_mtp:
        for depth in range(1, 6):
            yield _greedy(model, depth)
    modes: tuple[Mode, ...] = ("ar", "mtp") if model.has_mtp else ("ar",)
    for mode in modes:
        yield _warm(model, mode)
        yield _chunks(model, mode)
        yield _retry(model, mode)
        yield from _laws(model, mode)


def _session(model: Model, mode: Mode, depth: Depth = 3, **overrides: Any) -> Session:
    return model.session(mode=mode, depth=depth, context_copy=False, **overrides)


def _answer(session: Session, ids: Sequence[int], params: SamplingParams = GREEDY, n: int = TOKENS) -> tuple[int, ...]:
    for _ in session.generate(ids, params, max_tokens=n, ignore_stop=True):
        pass
    assert session.last_turn is not None
    return session.last_turn.ids


def _prompts(model: Model) -> list[list[int]]:
    return [model.tokenizer.encode(text) for text in PROMPTS]


def _greedy(model: Model, depth: int) -> Check:
    found = [
        _difference(model, ids, _answer(_session(model, "ar"), ids), _answer(_session(model, "mtp", depth), ids))
        for ids in _prompts(model)
    ]
    return _verdict(f"greedy drafting at depth {depth} = greedy plain decoding", found)


def _warm(model: Model, mode: Mode) -> Check:
    found = []
    for ids in _prompts(model):
        warm = _session(model, mode)
        _answer(warm, ids, n=9)
        longer = [*warm.ids, *ids[:4]]
        cold = _session(model, mode)
        found.append(_difference(model, longer, _answer(cold, longer), _answer(warm, longer)))
        found.append(_state_difference(model, cold, warm))
    return _verdict(f"{mode}: a warm turn = a cold one, ids and state", found)


def _chunks(model: Model, mode: Mode) -> Check:
    ids = [i for prompt in _prompts(model) for i in prompt] * 3
    whole = _answer(_session(model, mode), ids)
    found = [
        _difference(model, ids, whole, _answer(_session(model, mode, prefill_chunk=chunk), ids))
        for chunk in (1, 3, 16, 64)
    ]
    return _verdict(f"{mode}: prompts read in chunks of 1, 3, 16, 64", found)


def _retry(model: Model, mode: Mode) -> Check:
    found = []
    for ids in _prompts(model):
        disturbed, calm = _session(model, mode), _session(model, mode)
        _answer(disturbed, ids, n=5)
        _answer(calm, ids, n=5)
        longer = [*disturbed.ids, *ids[:3]]
        for n, _ in enumerate(disturbed.generate(longer, GREEDY, max_tokens=4 * TOKENS, ignore_stop=True)):
            if n == 2:
                disturbed.cancel()
        found.append(_state_difference(model, calm, disturbed))
        found.append(_difference(model, longer, _answer(calm, longer), _answer(disturbed, longer)))
    return _verdict(f"{mode}: a cancelled answer changes nothing, its retry is the same", found)


def _laws(model: Model, mode: Mode) -> Iterator[Check]:
    ids = _prompts(model)[0]
    exact = _exact_law(model, ids)
    for depth in (1, 2, 3) if mode == "mtp" else (3,):
        base = _session(model, mode, depth)
        _answer(base, ids[:-1], n=0)
        counts: Counter[tuple[int, ...]] = Counter()
        for seed in range(LAW_SEEDS):
            params = SamplingParams(temperature=LAW_TEMPERATURE, top_k=LAW_TOP_K, top_p=1.0, seed=seed)
            counts[_answer(base.fork(), ids, params, LAW_TOKENS)] += 1
        name = "ar: sampled law" if mode == "ar" else f"mtp depth {depth}: sampled law"
        yield _chi_square(f"{name} = exact enumeration", exact, counts)


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


def _chi_square(name: str, law: dict[tuple[int, ...], float], counts: Counter[tuple[int, ...]]) -> Check:
    """Passes below the 99.9 % bound; cells that expect fewer than 5 answers are one cell."""
    runs = sum(counts.values())
    outside = [ids for ids in counts if ids not in law]
    if outside:
        return Check(name, False, runs, f"answer {list(outside[0])} has probability 0")
    cells = [(counts[ids], runs * p) for ids, p in law.items() if runs * p >= 5]
    rest = (runs - sum(c for c, _ in cells), runs - sum(e for _, e in cells))
    if rest[1] > 0:
        cells.append(rest)
    value = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    free = max(1, len(cells) - 1)
    bound = free * (1 - 2 / (9 * free) + 3.0902 * math.sqrt(2 / (9 * free))) ** 3  # Wilson and Hilferty
    return Check(name, value <= bound, runs, f"chi-square {value:.1f} on {free} degrees, at most {bound:.1f}")


def _difference(model: Model, prompt: Sequence[int], want: Sequence[int], got: Sequence[int]) -> tuple[bool, str]:
    """Whether two greedy answers are the same, up to a near tie, and where they part."""
    if want == got:
        return True, ""
    at = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), min(len(want), len(got)))
    (row,) = _session(model, "ar").generate([*prompt, *want[:at]], GREEDY, max_tokens=1, ignore_stop=True, logprobs=2)
    (_, best), (_, second) = row.logprobs[0][1]
    bound = NEAR_TIE[model.info()["dtype"]]
    text = f"token {at}: {list(want[at : at + 1])} or {list(got[at : at + 1])}, margin {best - second:.2e}"
    return best - second < bound, text


def _state_difference(model: Model, a: Session, b: Session) -> tuple[bool, str]:
    found = a.first_difference(b)
    return found is None, found or ""


def _verdict(name: str, found: Sequence[tuple[bool, str]]) -> Check:
    wrong = [text for ok, text in found if not ok]
    near = [text for ok, text in found if ok and text]
    detail = wrong[0] if wrong else (f"near tie, {near[0]}" if near else "")
    return Check(name, not wrong, len(found), detail)
