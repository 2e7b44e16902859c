"""Qwen3.8-Flash-Next with its own multi-token prediction, exactly.

Importing this package checks the installed MLX and loads nothing heavy; the first use of a name loads what it needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

from qwenmtp._version import __version__, check_mlx
from qwenmtp.errors import (
    Cancelled,
    CheckpointError,
    ConfigError,
    ContextLengthExceeded,
    DeadlineExceeded,
    DeviceError,
    FinalCommitFailed,
    InsufficientMemory,
    InvalidRequest,
    IoError,
    ModelFormatError,
    NonFiniteLogits,
    PleReadError,
    QwenMtpError,
    SessionBusy,
    VersionMismatch,
)

if TYPE_CHECKING:
    from qwenmtp.bank import SessionBank
    from qwenmtp.bench.timing import BenchResult
    from qwenmtp.model import Model, load
    from qwenmtp.plan import MemoryPlan
    from qwenmtp.sampling import SamplingParams
    from qwenmtp.sessions import Session
    from qwenmtp.settings import Settings
    from qwenmtp.store import CheckpointStore
    from qwenmtp.turns import Round, Turn
    from qwenmtp.verify import VerifyReport

check_mlx()

__all__ = [
    "BenchResult",
    "Cancelled",
    "CheckpointError",
    "CheckpointStore",
    "ConfigError",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "DeviceError",
    "FinalCommitFailed",
    "InsufficientMemory",
    "InvalidRequest",
    "IoError",
    "MemoryPlan",
    "Model",
    "ModelFormatError",
    "NonFiniteLogits",
    "PleReadError",
    "QwenMtpError",
    "Round",
    "SamplingParams",
    "Session",
    "SessionBank",
    "SessionBusy",
    "Settings",
    "Turn",
    "VerifyReport",
    "VersionMismatch",
    "__version__",
    "load",
]

# Module of each name that is loaded at its first use.
_LAZY = {
    "BenchResult": "bench.timing",
    "CheckpointStore": "store",
    "MemoryPlan": "plan",
    "Model": "model",
    "Round": "turns",
    "SamplingParams": "sampling",
    "Session": "sessions",
    "SessionBank": "bank",
    "Settings": "settings",
    "Turn": "turns",
    "VerifyReport": "verify",
    "load": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
