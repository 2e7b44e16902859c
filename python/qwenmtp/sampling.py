"""Sampling parameters: defaults, ranges, the draft sampler. Policy only; the arithmetic is the core's."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from qwenmtp.errors import InvalidRequest, ModelFormatError, QwenMtpError

# The family's own defaults, used where neither the request nor the pack says anything.
_FAMILY: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 0.95,
    "top_k": 20,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
# Lowest, highest. Below 1e-30 the float32 reciprocal of a temperature times a logit could overflow.
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (1e-30, math.inf),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_EXPECTED = {
    "temperature": "0 (greedy) or a finite number of at least 1e-30",
    "top_p": "a number from 0 to 1 (0 and 1: no nucleus)",
    "top_k": "an integer from 0 (no limit) to 2147483647",
    "presence_penalty": "a number from -2 to 2",
    "frequency_penalty": "a number from -2 to 2",
    "seed": "a non-negative integer",
    "draft": "SamplingParams, 'mirror' or None",
}
_DRAFT_FIELDS = ("temperature", "top_p", "top_k")


def _refusal(kind: type[QwenMtpError], place: str, field: str, value: object) -> QwenMtpError:
    expected = _EXPECTED[field]
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return kind(
        f"[{place}] {field} is {shown}, expected {expected}",
        details={"field": field, "value": shown, "expected": expected},
    )


def _checked(field: str, value: object, kind: type[QwenMtpError], place: str) -> float:
    """The value as a plain int (top_k) or float (all others), if it is in range. A bool is not a number here."""
    if isinstance(value, bool):
        raise _refusal(kind, place, field, value)
    number: float
    try:
        if isinstance(value, Integral) and field == "top_k":
            number = int(value)
        elif isinstance(value, Real) and field != "top_k":
            number = float(value)
        else:
            raise _refusal(kind, place, field, value)
    except OverflowError:
        raise _refusal(kind, place, field, value) from None
    low, high = _RANGES[field]
    greedy = field == "temperature" and number == 0
    if not (greedy or (math.isfinite(number) and low <= number <= high)):
        raise _refusal(kind, place, field, value)
    return number


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Every number of one request, no choice left open; what the core gets.

    Attributes:
        temperature: 0 is greedy.
        top_p: Nucleus mass, measured on the full vocabulary; 0 and 1 are off.
        top_k: Candidates kept; 0 is off.
        presence_penalty: Subtracted from every token already generated.
        frequency_penalty: Subtracted once for each earlier occurrence.
        seed: Of the request's PCG64; drawn from the system when the request named none, so a turn can be repeated.
        draft_temperature: As temperature, for draft proposals; likewise the next two. Drafts are never penalised.
        draft_top_p: As top_p.
        draft_top_k: As top_k.
    """

    temperature: float
    top_p: float
    top_k: int
    presence_penalty: float
    frequency_penalty: float
    seed: int
    draft_temperature: float
    draft_top_p: float
    draft_top_k: int

    @property
    def greedy(self) -> bool:
        """Whether the target takes the best token of each row."""
        return self.temperature == 0

    @property
    def seed_words(self) -> tuple[int, ...]:
        """The seed as 32-bit words, lowest first; seed 0 is one word, as NumPy's SeedSequence reads it."""
        words = max(1, -(-self.seed.bit_length() // 32))
        return tuple(self.seed >> (32 * i) & 0xFFFFFFFF for i in range(words))

    def to_json(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw tokens. Fields left None take the pack's generation_config.json, then the family's default.

    Args:
        temperature: 0 is greedy; default 1.0.
        top_p: 0 to 1; 0 and 1 keep every candidate; default 0.95.
        top_k: 0 keeps every token; default 20.
        presence_penalty: -2 to 2; default 0. Penalties count generated tokens, never the prompt.
        frequency_penalty: -2 to 2; default 0.
        seed: Any non-negative integer; None draws a fresh one. The same seed gives the same tokens for the same
            mode and depth, not across them.
        draft: The proposals' own sampler (its penalties, seed and draft must stay unset; fields left None mirror the
            target), "mirror" for the target's, or None for the pack's recommendation, then the target's. It changes
            speed, never the law of the output.

    Raises:
        InvalidRequest: A field is not of its type or range.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    draft: SamplingParams | Literal["mirror"] | None = None

    def __post_init__(self) -> None:
        for field in _RANGES:
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, _checked(field, value, InvalidRequest, "sampling.params"))
        seed = self.seed
        if seed is not None:
            if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
                raise _refusal(InvalidRequest, "sampling.params", "seed", seed)
            object.__setattr__(self, "seed", int(seed))
        draft = self.draft
        if isinstance(draft, SamplingParams):
            for field in ("presence_penalty", "frequency_penalty", "seed", "draft"):
                if getattr(draft, field) is not None:
                    raise InvalidRequest(
                        f"[sampling.params] draft has its own {field}, expected only temperature, top_p and top_k",
                        details={"field": f"draft.{field}"},
                    )
        elif draft is not None and draft != "mirror":
            raise _refusal(InvalidRequest, "sampling.params", "draft", draft)

    def resolve(
        self,
        generation_config: Mapping[str, Any] | None = None,
        draft_sampler: Mapping[str, Any] | None = None,
    ) -> ResolvedSampling:
        """Fills every open field.

        Args:
            generation_config: The pack's generation_config.json. `do_sample: false` without a temperature is greedy.
            draft_sampler: The pack's recommended draft sampler (temperature, top_p, top_k).

        Raises:
            ModelFormatError: The pack's own value is not of its type or range.
        """
        pack = dict(generation_config or {})
        if pack.get("do_sample") is False:
            pack.setdefault("temperature", 0.0)

        def pick(field: str) -> Any:
            if (own := getattr(self, field)) is not None:
                return own
            if (packed := pack.get(field)) is not None:
                return _checked(field, packed, ModelFormatError, "generation_config.json")
            return _FAMILY[field]

        target = {field: pick(field) for field in _RANGES}
        proposal = self._draft_fields(target, draft_sampler or {})
        return ResolvedSampling(
            **target,
            seed=secrets.randbits(128) if self.seed is None else self.seed,
            **{f"draft_{field}": proposal[field] for field in _DRAFT_FIELDS},
        )

    def _draft_fields(self, target: dict[str, Any], recommended: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(self.draft, SamplingParams):
            own = {field: getattr(self.draft, field) for field in _DRAFT_FIELDS}
        elif self.draft is None and target["temperature"] != 0:
            own = {field: recommended.get(field) for field in _DRAFT_FIELDS}
            for field, value in own.items():
                if value is not None:
                    own[field] = _checked(field, value, ModelFormatError, "draft sampler of the pack")
        else:
            own = dict.fromkeys(_DRAFT_FIELDS)
        return {field: target[field] if value is None else value for field, value in own.items()}
