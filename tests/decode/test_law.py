"""The law of whole answers, by chi-square against exact enumeration; and a wrong acceptance that the same test sees."""

from itertools import product
from typing import Any

import _qwenmtp_testing as core
import numpy as np
import pytest

PROMPT, VOCAB, LENGTH, RUNS = [1, 2, 0], 4, 4, 8000
SAMPLER = (1.0, 0.97, 20, 0.0, 0.0)
DRAFT = (0.7, 0.95, 20, 0.0, 0.0)
# 99.9 % points of the normalised statistic z below; both tails of a chi-square near 50 degrees are close to normal.
BOUND = 3.29
# A prompt that repeats a six-gram, so that copied blocks are tried.
COPY_PROMPT = [1, 2, 0, 3, 1, 1, 2, 2, 0, 1, 2, 0, 3, 1, 1]


def config(**fields: Any) -> Any:
    out = core.ScriptedConfig()
    out.vocab, out.amp = VOCAB, 2.0
    for name, value in fields.items():
        setattr(out, name, value)
    return out


def count_answers(cfg: Any, options: dict[str, Any], prompt: list[int], runs: int) -> dict[tuple[int, ...], int]:
    return {tuple(answer): n for answer, n in core.count_answers(cfg, options, prompt, runs)}


def exact_law(prompt: list[int], sampler: tuple[float, ...]) -> dict[tuple[int, ...], float]:
    """Mass of every answer: a product of plain sampling's own distributions."""
    reader = core.Reader(core.Params(*sampler))
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for answer, mass in law.items():
            h = config().salt
            for t in [*prompt, *answer]:
                h = core.fold(h, t)
            row = np.array([(core.noise(h, j) - 32768) / 8192 for j in range(VOCAB)], np.float32)
            counts = {t: answer.count(t) for t in answer} or None
            dist = reader.distribution(row, "float32", counts)
            for token, p in zip(dist.ids, dist.mass, strict=True):
                longer[(*answer, token)] = mass * p
        law = longer
    return law


def statistic(law: dict[tuple[int, ...], float], counts: dict[tuple[int, ...], int]) -> float:
    """Normalised chi-square (Wilson-Hilferty); answers outside the support are infinitely wrong."""
    if set(counts) - set(law):
        return float("inf")
    runs = sum(counts.values())
    big = {a: p for a, p in law.items() if p * runs >= 5}
    cells = [(counts.get(a, 0), p * runs) for a, p in big.items()]
    rest = runs - sum(n for n, _ in cells), runs * (1 - sum(big.values()))
    cells += [rest] if rest[1] >= 5 else []
    chi2, dof = sum((n - e) ** 2 / e for n, e in cells), len(cells) - 1
    return float(((chi2 / dof) ** (1 / 3) - (1 - 2 / (9 * dof))) / np.sqrt(2 / (9 * dof)))


CASES = {
    "ar": {"speculate": False},
    "depth1": {"depth": 1},
    "depth2-draft0.7": {"depth": 2, "draft": DRAFT},
    "depth3": {"depth": 3},
    "depth3-greedy-draft": {"depth": 3, "draft": (0.0, 0.95, 20, 0.0, 0.0)},
    "depth1-reforward": {"depth": 1, "lane": "reforward"},
    "depth2-reforward": {"depth": 2, "lane": "reforward"},
    "depth3-reforward-draft0.7": {"depth": 3, "lane": "reforward", "draft": DRAFT},
    "depth3-block": {"depth": 3, "block_verify": True, "draft": DRAFT},
    "depth2-block-reforward": {"depth": 2, "block_verify": True, "lane": "reforward"},
    "auto": {"depth": 3, "auto_depth": True},
    "history-reset": {"depth": 2, "history_reset_rows": 1},
    "penalties": {"depth": 3, "target": (1.0, 0.97, 20, 0.9, 0.4)},
}


@pytest.mark.parametrize("case", CASES)
def test_answers_follow_plain_samplings_law(case: str) -> None:
    options = {"target": SAMPLER, "max_tokens": LENGTH, "context_copy": False, **CASES[case]}
    counts = count_answers(config(), options, PROMPT, RUNS)
    assert statistic(exact_law(PROMPT, options["target"]), counts) < BOUND


@pytest.mark.parametrize("lane", ["capture_commit", "reforward"])
def test_copied_blocks_keep_the_law(lane: str) -> None:
    options = {"target": SAMPLER, "max_tokens": LENGTH, "lane": lane, "depth": 2}
    counts = count_answers(config(), options, COPY_PROMPT, RUNS)
    decoder = core.ScriptedDecoder(core.ScriptedNetwork(config()), options, COPY_PROMPT)
    decoder.drain()
    assert decoder.statistics["context_copy_probes"] > 0
    assert statistic(exact_law(COPY_PROMPT, SAMPLER), counts) < BOUND


@pytest.mark.parametrize("case", ["depth1", "depth3", "depth3-reforward-draft0.7", "depth3-block"])
def test_accepting_every_draft_is_seen(case: str) -> None:
    options = {"target": SAMPLER, "max_tokens": LENGTH, "context_copy": False, **CASES[case]}
    counts = count_answers(config(accept_all=True), options, PROMPT, RUNS)
    assert statistic(exact_law(PROMPT, SAMPLER), counts) > 2 * BOUND


def test_the_statistic_sees_a_slightly_wrong_law() -> None:
    law = exact_law(PROMPT, SAMPLER)
    options = {"target": (1.1, 0.97, 20, 0.0, 0.0), "max_tokens": LENGTH, "speculate": False}
    assert statistic(law, count_answers(config(), options, PROMPT, RUNS)) > 2 * BOUND
    assert sum(law.values()) == pytest.approx(1.0)
    assert len(law) < len(list(product(range(VOCAB), repeat=LENGTH)))
