"""Text to token ids and back, whole and as a stream, and stop strings. Refuses all decoders but byte-level ones."""

from __future__ import annotations

import codecs
import hashlib
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import tokenizers

from qwenmtp.errors import InvalidRequest, ModelFormatError
from qwenmtp.text_files import TextFiles


def _byte_of_char() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary: printable Latin-1 is itself, the rest follow 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()


def check_ids(ids: Any, vocab_size: int) -> list[int]:
    """Token ids of a prompt as plain ints.

    Args:
        ids: A sequence of ints or a one-dimensional integer numpy array.
        vocab_size: Rows of the model's embedding; ids are below it.

    Raises:
        InvalidRequest: Empty, not integers, not one-dimensional, or an id out of range.
    """
    wrong = InvalidRequest("[tokenizer.ids] expected a sequence of ints or a one-dimensional integer array")
    if isinstance(ids, str | bytes | bytearray) or not (isinstance(ids, Sequence) or hasattr(ids, "tolist")):
        raise wrong
    values = ids.tolist() if hasattr(ids, "tolist") else ids
    try:
        plain = [operator.index(value) for value in values]
    except TypeError:
        raise wrong from None
    if any(isinstance(value, bool) for value in values):
        raise wrong
    if not plain:
        raise InvalidRequest("[tokenizer.ids] the prompt is empty, expected at least one token")
    for position, token in enumerate(plain):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"[tokenizer.ids] token id {token} at position {position}, expected 0 to {vocab_size - 1}",
                details={"id": token, "position": position, "vocab_size": vocab_size},
            )
    return plain


class Tokenizer:
    """A model's tokenizer.

    Args:
        files: The model folder's text files.

    Attributes:
        vocab_size: One above the highest id with text; the model's embedding may be padded above it.
        special_ids: Tokens that `skip_special` leaves out; tokenizer_config.json overrides tokenizer.json.
        stop_ids: Ascending ids that end an answer: generation_config.json's `eos_token_id` and the `eos_token`.
        digest: SHA-256 of tokenizer.json, hexadecimal.

    Raises:
        ModelFormatError: tokenizer.json cannot be read, or its decoder is not byte-level.
    """

    def __init__(self, files: TextFiles):
        try:
            self._backend = tokenizers.Tokenizer.from_buffer(files.tokenizer)
        except Exception as error:  # the backend raises bare Exception
            raise ModelFormatError(f"[tokenizer] tokenizer.json in {files.folder} is unusable: {error}") from None
        if not isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel):
            raise ModelFormatError(f"[tokenizer] decoder {self._backend.decoder}, expected ByteLevel")
        # A truncation stored in the file would cut prompts silently.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._added = {i: token.content for i, token in self._backend.get_added_tokens_decoder().items()}
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = 1 + max(self._backend.get_vocab(with_added_tokens=True).values())
        self.special_ids = self._special_ids(files)
        self.stop_ids = self._stop_ids(files)
        self.digest = hashlib.sha256(files.tokenizer).hexdigest()

    def _special_ids(self, files: TextFiles) -> frozenset[int]:
        special = {i: token.special for i, token in self._backend.get_added_tokens_decoder().items()}
        for key, token in (files.tokenizer_config.get("added_tokens_decoder") or {}).items():
            known = self._backend.id_to_token(int(key)) if key.isdecimal() else None
            if known is None or token.get("content") != known:
                raise ModelFormatError(
                    f"[tokenizer] token {key} is {token.get('content')!r} in tokenizer_config.json, "
                    f"{known!r} in tokenizer.json"
                )
            special[int(key)] = bool(token.get("special"))
        return frozenset(i for i, flag in special.items() if flag)

    def _stop_ids(self, files: TextFiles) -> tuple[int, ...]:
        value = files.generation_config.get("eos_token_id")
        ids = [] if value is None else list(value) if isinstance(value, list) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise ModelFormatError(f"[tokenizer] eos_token_id {token!r} in generation_config.json, expected an id")
        eos = files.special_token("eos_token")
        if eos is not None:
            token = self._backend.token_to_id(eos)
            if token is None:
                raise ModelFormatError(f"[tokenizer] eos_token {eos!r} is not in tokenizer.json")
            ids.append(token)
        return tuple(sorted(set(ids)))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens written out in it become their ids, nothing is added around it.

        Raises:
            InvalidRequest: Not a str, or it holds a lone surrogate.
        """
        if not isinstance(text, str):
            raise InvalidRequest(f"[tokenizer.encode] {type(text).__name__}, expected text")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"[tokenizer.encode] lone surrogate at character {error.start}, expected valid Unicode"
            ) from None
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes a token stands for, possibly part of a character; empty for an id without text."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._bytes_of(token)
        return known

    def _bytes_of(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return added.encode("utf-8")
        piece = self._backend.id_to_token(token) if 0 <= token < self.vocab_size else None
        if piece is None:
            return b""
        if all(char in _BYTE_OF_CHAR for char in piece):
            return bytes(_BYTE_OF_CHAR[char] for char in piece)
        return piece.encode("utf-8")

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD, once for each broken sequence."""
        stream = self.stream(skip_special=skip_special)
        return stream.push(ids) + stream.flush()

    def stream(self, *, skip_special: bool = True) -> StreamDecoder:
        """A decoder for tokens as they are made."""
        return StreamDecoder(self, skip_special)


class StreamDecoder:
    """Turns tokens into text as they are made. A character cut by a token boundary is held until it is whole, so the
    pieces and the flush, joined, are the decoded whole. Belongs to one answer."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool):
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset[int]()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Text that these tokens complete."""
        return self._utf8.decode(b"".join(self._tokenizer.token_bytes(i) for i in ids if i not in self._skipped))

    def flush(self) -> str:
        """U+FFFD if the answer ended inside a character, else nothing."""
        return self._utf8.decode(b"", final=True)


class StopStrings:
    """Watches streamed text for stop strings and releases what can no longer be part of one.

    The stop string that completes first wins; of those that complete together, the longest. At most
    `longest stop - 1` characters are held back. Push the text of one token at a time to learn which token completed it.

    Args:
        stops: Non-empty strings; none at all is allowed.

    Attributes:
        matched: The stop string found, or None.

    Raises:
        InvalidRequest: A stop string is empty or not text.
    """

    def __init__(self, stops: str | Sequence[str] = ()):
        self._stops = [stops] if isinstance(stops, str) else list(stops)
        for stop in self._stops:
            if not isinstance(stop, str) or not stop:
                raise InvalidRequest(f"[tokenizer.stop] {stop!r}, expected non-empty text", details={"field": "stop"})
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Text that is safe to show; nothing once a stop string was found."""
        if self.matched is not None:
            return ""
        text = self._held + piece
        found = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, _, self.matched = min(found)
            self._held = ""
            return text[: end - len(self.matched)]
        keep = next((n for n in range(min(self._longest - 1, len(text)), 0, -1) if self._may_grow(text[-n:])), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _may_grow(self, tail: str) -> bool:
        return any(stop.startswith(tail) for stop in self._stops)

    def flush(self) -> str:
        """The held rest, at the end of an answer in which no stop string was found."""
        held, self._held = self._held, ""
        return held
