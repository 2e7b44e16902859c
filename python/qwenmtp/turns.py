"""What an answer is made of: rounds while it grows, the turn when it is done. Owns text and stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from qwenmtp.tokenizer import StopStrings, StreamDecoder


@dataclass(frozen=True, slots=True)
class Round:
    """What one draft-verify-commit round released.

    Attributes:
        ids: Tokens, stop tokens left out.
        text: Their text; a character whose bytes are not complete comes with a later round.
        drafted: Tokens proposed in the round.
        accepted: How many of them the model itself would have drawn.
        logprobs: Per token, if asked for: its log-probability and the best alternatives, from the raw logits.
    """

    ids: tuple[int, ...]
    text: str
    drafted: int
    accepted: int
    logprobs: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """A finished answer.

    Attributes:
        ids: Every token of the answer, a terminating stop token included.
        text: The answer's text.
        finish: `stop`, `length`, `cancelled` or `deadline`.
        stop_origin: For `stop`: what ended it (reference/decode.md 4.5, `stop_string`, `repetition_stop`).
        usage: Token counts: `prompt`, `cached`, `prefilled`, `completion`.
        timing: Seconds by phase; rates are for whoever divides.
        stats: Counters of the drivers (docs/decode.md).
        reuse: Where the prompt's prefix came from: `restored` tokens, `mode` (`exact`, `boundary`, `none`), `source`
            (`live`, `bank`, `store`, `none`), `miss` (why there was nothing, or what was wrong with the stored file).
        final: Whether the state after the last token is kept: `committed`, and `reason` where not.
    """

    ids: tuple[int, ...]
    text: str
    finish: str
    stop_origin: str | None
    usage: dict[str, int]
    timing: dict[str, float]
    stats: dict[str, Any]
    reuse: dict[str, Any]
    final: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return asdict(self)


@dataclass(slots=True)
class Answer:
    """The text of an answer while it grows, and the ids that belong to it."""

    stream: StreamDecoder | None
    stops: StopStrings
    ids: list[int] = field(default_factory=list)
    text: str = ""

    def push(self, ids: Sequence[int]) -> tuple[tuple[int, ...], str]:
        """Ids and text that may be shown; nothing from the token that completes a stop string on."""
        shown, pieces = [], []
        for token in ids:
            if self.stops.matched is not None:
                break
            piece = self.stops.push(self.stream.push([token])) if self.stream else ""
            pieces.append(piece)
            if self.stops.matched is None:
                shown.append(token)
        self.ids += shown
        text = "".join(pieces)
        self.text += text
        return tuple(shown), text

    def flush(self) -> str:
        """The rest of the text, when nothing follows."""
        if self.stops.matched is not None or self.stream is None:
            return ""
        rest = self.stops.push(self.stream.flush())
        if self.stops.matched is None:
            rest += self.stops.flush()
        self.text += rest
        return rest
