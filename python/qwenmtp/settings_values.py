"""Kinds of setting values and their strict forms, as environment text and as Python values. Knows no names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ON = ("1", "true", "yes", "on", "enable", "enabled")
OFF = ("0", "false", "no", "off", "disable", "disabled")
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MAX_INT = 2**31 - 1
MAX_BYTES = 2**62


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value.

    Attributes:
        accepted: The forms, as a message names them.
        of_text: Value of an environment text, trimmed and not empty; ValueError if it is no accepted form.
        of_value: The same for a Python value, as a keyword gives it.
    """

    accepted: str
    of_text: Callable[[str], Any]
    of_value: Callable[[Any], Any]


def bool_of_text(text: str) -> bool:
    word = text.lower()
    if word not in ON + OFF:
        raise ValueError
    return word in ON


def _instance(kind: type) -> Callable[[Any], Any]:
    def of_value(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError
        return value

    return of_value


BOOL = Kind(f"{'/'.join(ON)} or {'/'.join(OFF)}", bool_of_text, _instance(bool))


def one_of(*words: str) -> Kind:
    """Exactly one of the words."""

    def check(text: Any) -> str:
        if not isinstance(text, str) or text not in words:
            raise ValueError
        return text

    return Kind(", ".join(words), check, check)


def _switch_of_text(text: str) -> str:
    return "auto" if text == "auto" else "on" if bool_of_text(text) else "off"


def _switch_of_value(value: Any) -> str:
    return _switch_of_text(
        "on" if value is True else "off" if value is False else one_of("auto", *ON, *OFF).of_value(value)
    )


SWITCH = Kind(f"auto, {BOOL.accepted}", _switch_of_text, _switch_of_value)


def integer(low: int, high: int = MAX_INT) -> Kind:
    """A whole number from low to high."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError
        return value

    accepted = f"a whole number >= {low}" if high == MAX_INT else f"a whole number from {low} to {high}"
    return Kind(accepted, lambda text: check(_digits(text)), check)


def _digits(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text):
        raise ValueError
    return int(text)


def _seconds_of_value(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError
    return float(value)


SECONDS = Kind("seconds, a finite number >= 0", lambda text: _seconds_of_value(float(text)), _seconds_of_value)


def _bytes_of_text(text: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:I?B)?", text.upper())
    if not match:
        raise ValueError
    value = float(match[1]) * UNITS[match[2]] if "." in match[1] else int(match[1]) * UNITS[match[2]]
    return _bytes_of_value(int(value))


def _bytes_of_value(value: Any) -> int:
    if isinstance(value, str):
        return _bytes_of_text(value.strip())
    if type(value) is not int or not 0 <= value <= MAX_BYTES:
        raise ValueError
    return value


SIZE = "bytes, with K, M, G or T (powers of 1024) and B or iB if wanted"


def size(*words: str) -> Kind:
    """A number of bytes, or one of the words."""

    def either(value: Any) -> Any:
        return value if isinstance(value, str) and value in words else _bytes_of_value(value)

    return Kind(", ".join([*words, SIZE]), either, either)


def _path_of_value(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError
    return str(Path(value).expanduser())


PATH = Kind("a path", _path_of_value, _path_of_value)


def optional(kind: Kind) -> Kind:
    """The kind, or none."""

    def of_text(text: str) -> Any:
        return None if text == "none" else kind.of_text(text)

    return Kind(f"none, {kind.accepted}", of_text, lambda value: None if value is None else kind.of_value(value))
