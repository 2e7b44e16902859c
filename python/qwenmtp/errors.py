"""Every error a user can meet: one class per remedy, one stable code per cause. Refuses codes outside `CODES`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """What a code promises: retry advice, HTTP status, meaning, and the session after it."""

    code: str
    retryable: bool  # the default; an instance may know better
    http_hint: int | None  # None: a warning beside an answer, or a failure before any request
    meaning: str
    session_after: str


class QwenMtpError(Exception):
    """Base of every error raised by qwenmtp.

    Args:
        message: One sentence, `[room.function] fact, expected` when it comes from the core.
        retryable: Whether the same call may succeed later; None takes the code's default.
        details: JSON-ready facts (numbers, names, limits).

    Attributes:
        code: Stable identifier, a row of docs/errors.md.
        retryable: Whether the same call may succeed later.
        details: JSON-ready facts.
        http_hint: Status an HTTP server would answer with, or None.
    """

    default_code = "internal_error"

    def __init__(self, message: str, *, retryable: bool | None = None, details: Mapping[str, Any] | None = None):
        super().__init__(message)
        self._set_code(self.default_code)
        if retryable is not None:
            self.retryable = retryable
        self.details: dict[str, Any] = dict(details or {})

    def _set_code(self, code: str) -> None:
        self.code = code
        self.retryable = CODES[code].retryable
        self.http_hint = CODES[code].http_hint

    def to_json(self) -> dict[str, Any]:
        """The error as a JSON-ready object: code, message, retryable, http_hint, details."""
        return {
            "code": self.code,
            "message": str(self),
            "retryable": self.retryable,
            "http_hint": self.http_hint,
            "details": self.details,
        }


class InvalidRequest(QwenMtpError):
    """A request field has a wrong type or range; nothing was changed."""

    default_code = "invalid_request"


class ContextLengthExceeded(QwenMtpError):
    """The prompt does not fit the context window."""

    default_code = "context_length_exceeded"


class SessionBusy(QwenMtpError):
    """Another call on the same session is in flight."""

    default_code = "session_busy"


class InsufficientMemory(QwenMtpError):
    """The memory plan, or the allocator, refuses; `details` holds the numbers."""

    default_code = "insufficient_memory"


class Cancelled(QwenMtpError):
    """The caller cancelled; `details["origin"]` is the first origin recorded."""

    default_code = "cancelled"


class DeadlineExceeded(QwenMtpError):
    """The deadline passed where no partial answer can be returned."""

    default_code = "deadline_exceeded"


class NonFiniteLogits(QwenMtpError):
    """A logits row holds NaN, or nothing that could be drawn."""

    default_code = "non_finite_logits"


class PleReadError(QwenMtpError):
    """The n-gram table could not be read; raised before any state changes."""

    default_code = "ple_read_error"


class DeviceError(QwenMtpError):
    """A command buffer or kernel failed; the session was reset."""

    default_code = "device_error"


class FinalCommitFailed(QwenMtpError):
    """The answer is complete, its state is not committed."""

    default_code = "final_commit_failed"


class ModelFormatError(QwenMtpError):
    """A model folder is missing a part, damaged, or of a layout this package refuses."""

    default_code = "model_load_error"


class IoError(QwenMtpError):
    """Opening, reading or writing a file failed, for instance on a full disk."""

    default_code = "io_error"


class ConfigError(QwenMtpError):
    """A setting has an unknown name or a value that is not accepted."""

    default_code = "config_error"


class VersionMismatch(QwenMtpError):
    """The installed MLX is not the one this build needs."""

    default_code = "version_mismatch"


class CheckpointError(QwenMtpError):
    """A checkpoint was not restored.

    Args:
        message: One sentence.
        outcome: Row of the outcome table, a key of `CHECKPOINT_CODES`; it decides what happens to the file.
        details: JSON-ready facts; a corrupt file has its stable sub-reason under `reason`.
    """

    default_code = "checkpoint_corrupt"

    def __init__(
        self,
        message: str,
        outcome: str,
        *,
        retryable: bool | None = None,
        details: Mapping[str, Any] | None = None,
    ):
        super().__init__(message, details=details)
        self.outcome = outcome
        self._set_code(CHECKPOINT_CODES[outcome])
        if retryable is not None:
            self.retryable = retryable

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.outcome), self.__dict__


CHECKPOINT_CODES = {
    "old_version": "checkpoint_version",
    "corrupt": "checkpoint_corrupt",
    "foreign": "checkpoint_foreign",
    "incompatible": "checkpoint_incompatible",
    "unsafe_path": "checkpoint_unsafe_path",
    "busy": "checkpoint_unavailable",
    "cancelled": "cancelled",
}

_UNCHANGED = "unchanged"
_COLD = "cold, no token reused"

CODES: dict[str, ErrorCode] = {
    row.code: row
    for row in (
        ErrorCode(
            "invalid_request", False, 400, "field type or range, empty prompt, token id out of range", _UNCHANGED
        ),
        ErrorCode("context_length_exceeded", False, 400, "the prompt does not fit the context window", _UNCHANGED),
        ErrorCode("session_busy", True, 409, "another call on this session is in flight", _UNCHANGED),
        ErrorCode("insufficient_memory", False, 507, "refused by the memory plan or the allocator", _UNCHANGED),
        ErrorCode("cancelled", True, 499, "cancelled; the first origin is in the details", _UNCHANGED),
        ErrorCode("deadline_exceeded", True, 504, "the deadline passed", _UNCHANGED),
        ErrorCode("ple_read_error", True, 500, "short read or I/O error in the n-gram table", _UNCHANGED),
        ErrorCode("non_finite_logits", False, 500, "a logits row holds NaN or has no mass", _UNCHANGED),
        ErrorCode("device_error", False, 500, "a command buffer or kernel failed", "reset"),
        ErrorCode("final_commit_failed", False, None, "the answer is complete, its state is not", "previous commit"),
        ErrorCode("checkpoint_version", False, None, "file of an older format version; removed", _COLD),
        ErrorCode("checkpoint_corrupt", False, None, "digest, checksum, size or schema is wrong; removed", _COLD),
        ErrorCode("checkpoint_foreign", False, None, "not a file of this package; left alone", _COLD),
        ErrorCode("checkpoint_incompatible", False, None, "other model, configuration or policy; removed", _COLD),
        ErrorCode("checkpoint_unsafe_path", False, None, "link, FIFO, foreign owner or writable by others", _COLD),
        ErrorCode(
            "checkpoint_unavailable", True, None, "the file cannot be opened or read now; left alone", _UNCHANGED
        ),
        ErrorCode(
            "model_load_error", False, None, "a model folder is incomplete, damaged or of an unknown layout", "none"
        ),
        ErrorCode("io_error", False, None, "opening, reading or writing a file failed", "none"),
        ErrorCode("config_error", False, None, "unknown setting or value not accepted", "none"),
        ErrorCode("version_mismatch", False, None, "the installed MLX is not the one this build needs", "none"),
        ErrorCode("internal_error", False, 500, "a bug in this package; please report it", "unknown"),
    )
}

# What a user can do about each code.
REMEDIES = {
    "invalid_request": "change the field that the details name",
    "context_length_exceeded": "shorten the prompt, or drop the oldest messages",
    "session_busy": "wait for the running request, or cancel() it; a session answers one request at a time",
    "insufficient_memory": "`qwenmtp plan` shows the parts: a shorter context, `ple.residency=ssd`, or a narrower pack",
    "cancelled": "nothing: the session is as it was before the request",
    "deadline_exceeded": "a later deadline, or fewer tokens",
    "ple_read_error": "check the disk, then `qwenmtp table verify`; the session is unharmed",
    "non_finite_logits": "`qwenmtp verify`; if it fails too, convert or download the pack again",
    "device_error": "read the message: another dtype or driver; the session starts cold",
    "final_commit_failed": "keep the text; the next request reads the conversation again",
    "checkpoint_version": "nothing: the conversation is read again and saved anew",
    "checkpoint_corrupt": "nothing; if it happens again, check the disk that holds `checkpoint.dir`",
    "checkpoint_foreign": "move the file out of the folder of the store",
    "checkpoint_incompatible": "nothing: settings or model have changed, the conversation is read again",
    "checkpoint_unsafe_path": "give the folder to this user alone: `chmod 700`",
    "checkpoint_unavailable": "try again: another process holds it, or the disk does not answer",
    "model_load_error": "the message names the file or tensor: download or convert again",
    "io_error": "the message has the reason of the system: space, permissions, a name",
    "config_error": "the message has the accepted forms; `qwenmtp settings` lists all",
    "version_mismatch": "install the MLX that the message names",
    "internal_error": "report it with the message and `qwenmtp --version`",
}

_CLASSES: dict[str, type[QwenMtpError]] = {
    cls.default_code: cls
    for cls in (
        QwenMtpError,
        InvalidRequest,
        ContextLengthExceeded,
        SessionBusy,
        InsufficientMemory,
        Cancelled,
        DeadlineExceeded,
        NonFiniteLogits,
        PleReadError,
        DeviceError,
        FinalCommitFailed,
        ModelFormatError,
        IoError,
        ConfigError,
        VersionMismatch,
    )
}
_OUTCOMES = {code: outcome for outcome, code in CHECKPOINT_CODES.items() if code not in _CLASSES}


def class_of(code: str) -> type[QwenMtpError]:
    """The class that carries a code. Raises KeyError for a code outside `CODES`."""
    return CheckpointError if code in _OUTCOMES else _CLASSES[code]


def from_code(code: str, message: str, details: Mapping[str, Any] | None = None) -> QwenMtpError:
    """Builds the error of a code, as the core reports it.

    Args:
        code: A key of `CODES`. Any other becomes `internal_error` with the code kept in the details, so that
            no failure of the core is lost for want of a row.
        message: The core's message.
        details: JSON-ready facts.
    """
    if code in _OUTCOMES:
        return CheckpointError(message, _OUTCOMES[code], details=details)
    if code not in _CLASSES:
        return QwenMtpError(message, details={**(details or {}), "unknown_code": code})
    return _CLASSES[code](message, details=details)
