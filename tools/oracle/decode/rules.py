"""The sampler of decode.md 1, 2 and 5, independently: no MTPLX, no MLX.

float32 normalisers are computed in float64 and rounded, so masses are not a bit reference; tokens, support and
generator states are.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from pcg64_check import Pcg64

Config = dict[str, Any]
Counts = Counter[int] | dict[int, int] | None


class NonFinite(Exception):
    """A row that no token may be drawn from."""


class Dist:
    """Ids ascending with float64 mass, or a whole dense vector."""

    def __init__(self, ids: Any, probs: Any, dense: bool = False) -> None:
        self.ids = np.asarray(ids)
        self.probs = np.asarray(probs, dtype=np.float64)
        self.dense = dense

    def p(self, token: int) -> float:
        if self.dense:
            return float(self.probs[token])
        hit = np.nonzero(self.ids == token)[0]
        return float(self.probs[hit[0]]) if len(hit) else 0.0

    def positive(self) -> Dist:
        """Without zero mass, normalised once."""
        keep = self.probs > 0
        return Dist(self.ids[keep], self.probs[keep] / self.probs[keep].sum())


def point(token: int) -> Dist:
    return Dist([token], [1.0])


def round_to(row: np.ndarray, dtype: str) -> np.ndarray:
    row = np.asarray(row, dtype=np.float32)
    if dtype == "float16":
        return row.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = row.view(np.uint32).astype(np.uint64)
        bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
        return bits.astype(np.uint32).view(np.float32)
    return row


def clamp(value: float) -> float:
    return min(max(value, -2.0), 2.0)


def deltas(cfg: Config, counts: Counts, overlay: dict[int, float] | None) -> list[tuple[int, float]]:
    """What is taken off which token, in order of application."""
    presence, frequency = clamp(cfg["presence_penalty"]), clamp(cfg["frequency_penalty"])
    out = []
    if counts and (presence or frequency):
        out = [(t, frequency * float(n) + presence * (1.0 if n > 0 else 0.0)) for t, n in counts.items()]
    return out + list((overlay or {}).items())


def penalised(row: np.ndarray, dtype: str, cfg: Config, counts: Counts, overlay: Any = None) -> np.ndarray:
    """Sparse and greedy paths: the step is rounded to the row's dtype, then added in it."""
    out = np.array(row, dtype=np.float32)
    for token, delta in deltas(cfg, counts, overlay):
        step = round_to(np.array([-np.float32(delta)]), dtype)[0]
        out[token] = round_to(np.array([out[token] + step], dtype=np.float32), dtype)[0]
    return out


def ranked(values: np.ndarray, k: int | None = None) -> np.ndarray:
    """Indices by value descending, index ascending; the first k only."""
    if k is None or k >= len(values):
        return np.argsort(-values, kind="stable")
    cut = np.partition(values, len(values) - k)[len(values) - k]
    ids = np.flatnonzero(values >= cut)
    return ids[np.argsort(-values[ids], kind="stable")][:k]


def nucleus(mass: np.ndarray, top_p: float) -> np.ndarray:
    """Which entries of a ranked mass stay: those whose running sum before them is below top_p."""
    return np.concatenate(([0.0], np.cumsum(mass)[:-1])) < top_p


def shape(row: np.ndarray, cfg: Config, counts: Counts = None, overlay: Any = None, dtype: str = "float32") -> Dist:
    t, top_p, k = cfg["temperature"], cfg["top_p"], int(cfg["top_k"])
    if k <= 0:
        return shape_dense(row, cfg, counts, overlay)
    scaled = penalised(row, dtype, cfg, counts, overlay) * np.float32(1.0 / t)
    if np.isnan(scaled).any() or not np.isfinite(scaled.max()):
        raise NonFinite
    order = ranked(scaled, k)
    if 0 < top_p < 1:
        m = float(scaled.max())
        lse = np.float32(m + np.log(np.sum(np.exp(scaled.astype(np.float64) - m))))
        mass = np.exp((scaled[order] - lse).astype(np.float64)).astype(np.float32).astype(np.float64)
        mass = np.where(nucleus(mass, top_p), mass, 0.0)
    else:
        mass = np.exp(scaled[order].astype(np.float64) - float(scaled.max()))
        mass /= mass.sum()
    keep = mass > 0
    ids, mass = order[keep], mass[keep]
    by_id = np.argsort(ids)
    ids, mass = ids[by_id], mass[by_id] / mass.sum()
    return Dist(ids, mass / mass.sum())


def shape_dense(row: np.ndarray, cfg: Config, counts: Counts, overlay: Any) -> Dist:
    """No top-k: float64 throughout."""
    x = np.array(row, dtype=np.float32).astype(np.float64)
    for token, delta in deltas(cfg, counts, overlay):
        x[token] -= delta
    x = x / cfg["temperature"]
    if np.isnan(x).any() or not np.isfinite(np.max(x)):
        raise NonFinite
    p = np.exp(x - x.max())
    p /= p.sum()
    if 0 < cfg["top_p"] < 1:
        order = ranked(p)
        p[order[~nucleus(p[order], cfg["top_p"])]] = 0.0
        p = p / p.sum()
    return Dist(np.arange(len(p)), p / p.sum(), dense=True)


class Draws:
    """The request generator, with the trace of what each draw was for."""

    def __init__(self, seed: int) -> None:
        self.rng = Pcg64(seed)
        self.trace = ""

    def u(self) -> float:
        self.trace += "u"
        return self.rng.random()

    def pick(self, dist: Dist) -> int:
        self.trace += "c"
        cdf = np.cumsum(dist.probs)
        cdf /= cdf[-1]
        return int(dist.ids[int(np.searchsorted(cdf, self.rng.random(), side="right"))])


def greedy(row: np.ndarray, cfg: Config, counts: Counts = None, overlay: Any = None, dtype: str = "float32") -> int:
    x = penalised(row, dtype, cfg, counts, overlay)
    if np.isnan(x).any() or np.isinf(x.max()):
        raise NonFinite
    return int(np.argmax(x))


def sample(row: np.ndarray, cfg: Config, draws: Draws, counts: Counts = None) -> tuple[int, Dist | None]:
    if cfg["temperature"] <= 0:
        return greedy(row, cfg, counts), None
    dist = shape(row, cfg, counts)
    return draws.pick(dist), dist


def accept_p(p: Dist, q: Dist, token: int) -> float:
    a, b = p.p(token), q.p(token)
    return (1.0 if a > 0 else 0.0) if b <= 0 else min(1.0, a / b)


def residual(p: Dist, q: Dist, p_scale: float = 1.0, q_scale: float = 1.0) -> Dist:
    ids = p.ids if p.dense else np.union1d(p.ids, q.ids)
    r = np.array([max(p_scale * p.p(int(t)) - q_scale * q.p(int(t)), 0.0) for t in ids])
    if r.sum() <= 0:
        return p
    if p.dense:
        return Dist(ids, r / r.sum(), dense=True)
    keep = r > 0
    return Dist(ids[keep], r[keep] / r[keep].sum())


# ------------------------------------------------------------------ block verification (decode.md 5)
def water_level(q: np.ndarray, base: np.ndarray, cap: float, goal: float) -> float:
    """Smallest l >= 0 with sum q * min(cap, base + l) = goal."""
    value = float(np.sum(q * np.minimum(cap, base)))
    if value >= goal:
        return 0.0
    room = cap - base
    level = 0.0
    for edge in np.unique(room[room > 0]):
        active = float(np.sum(q[room >= edge]))
        if value + active * (edge - level) >= goal:
            return level + (goal - value) / active
        value += active * (edge - level)
        level = float(edge)
    return level


class BlockLaw:
    """One window's coins and residuals; all rows known before the first test."""

    def __init__(self, tokens: list[int], ps: list[Dist], qs: list[Dist]) -> None:
        self.ps, self.qs = [p.positive() for p in ps], [q.positive() for q in qs]
        self.coins: list[float] = []
        self.scales: list[tuple[float, float]] = []
        budget_before = reach = reach_before = 1.0
        for d, token in enumerate(tokens):
            p, q = self.ps[d].p(token), self.qs[d].p(token)
            rho = (1.0 if p > 0 else 0.0) if q <= 0 else p / q
            budget = min(reach, 1.0, budget_before * rho)
            realised = self.look_ahead(tokens, d, budget, reach)
            self.coins.append(min(1.0, realised / reach) if reach > 0 else 1.0)
            self.scales.append((budget_before, reach_before))
            budget_before, reach_before, reach = budget, reach, min(reach, realised)

    def look_ahead(self, tokens: list[int], d: int, budget: float, cap: float) -> float:
        if d + 1 >= len(tokens) or budget >= cap:
            return min(budget, cap)
        p, q = self.ps[d + 1], self.qs[d + 1]
        base = np.minimum(1.0, budget * np.array([p.p(int(t)) for t in q.ids]) / q.probs)
        level = water_level(q.probs, base, cap, budget)
        hit = np.nonzero(q.ids == tokens[d + 1])[0]
        return min(cap, (float(base[hit[0]]) if len(hit) else 0.0) + level)

    def residual(self, d: int) -> Dist:
        return residual(self.ps[d], self.qs[d], *self.scales[d])
