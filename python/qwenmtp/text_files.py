"""The text files beside a model's weights, read once and checked for shape; their meaning belongs to their readers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenmtp.errors import ModelFormatError


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Contents of a model folder's text files; an absent optional file is empty.

    Attributes:
        folder: Where they came from, for messages.
        tokenizer: tokenizer.json, its bytes.
        tokenizer_config: tokenizer_config.json.
        generation_config: generation_config.json.
        runtime: mtplx_runtime.json, the contract of an MTPLX pack.
        chat_template: chat_template.jinja, or None.
    """

    folder: Path
    tokenizer: bytes
    tokenizer_config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    runtime: Mapping[str, Any]
    chat_template: str | None

    def special_token(self, name: str) -> str | None:
        """Text of a token that tokenizer_config.json names, such as `eos_token`; None where it names none."""
        value = self.tokenizer_config.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if value is not None and not isinstance(value, str):
            raise ModelFormatError(f"[text_files] {name} in tokenizer_config.json is {value!r}, expected text")
        return value


def read_text_files(folder: str | Path) -> TextFiles:
    """Reads the text files of a model folder.

    Raises:
        ModelFormatError: tokenizer.json is missing, or a file is unreadable, not UTF-8, or not a JSON object.
    """
    folder = Path(folder)
    template = _read(folder / "chat_template.jinja")
    tokenizer = _read(folder / "tokenizer.json")
    if tokenizer is None:
        raise ModelFormatError(f"[text_files] no tokenizer.json in {folder}", details={"file": "tokenizer.json"})
    return TextFiles(
        folder=folder,
        tokenizer=tokenizer,
        tokenizer_config=_read_object(folder / "tokenizer_config.json"),
        generation_config=_read_object(folder / "generation_config.json"),
        runtime=_read_object(folder / "mtplx_runtime.json"),
        chat_template=None if template is None else _text(folder / "chat_template.jinja", template),
    )


def read_pack(folder: str | Path) -> dict[str, Any]:
    """What settings take from a model folder: config.json, and mtplx_runtime.json under the key `mtplx_runtime`.

    Raises:
        ModelFormatError: A file is unreadable, not UTF-8, or not a JSON object.
    """
    folder = Path(folder)
    return {**_read_object(folder / "config.json"), "mtplx_runtime": _read_object(folder / "mtplx_runtime.json")}


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelFormatError(f"[text_files] cannot read {path}: {error}", details={"file": path.name}) from None


def _text(path: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFormatError(
            f"[text_files] {path} is not UTF-8 at byte {error.start}", details={"file": path.name}
        ) from None


def _read_object(path: Path) -> Mapping[str, Any]:
    raw = _read(path)
    if raw is None:
        return {}
    try:
        value = json.loads(_text(path, raw))
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"[text_files] {path} is not JSON: {error}", details={"file": path.name}) from None
    if not isinstance(value, dict):
        raise ModelFormatError(
            f"[text_files] {path} holds a {type(value).__name__}, expected an object", details={"file": path.name}
        )
    return value
