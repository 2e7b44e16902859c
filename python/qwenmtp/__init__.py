"""Qwen3.8-Flash-Next with its own multi-token prediction, exactly."""

from qwenmtp._version import __version__, check_mlx

check_mlx()

from qwenmtp.errors import (  # noqa: E402 - nothing may load the core before the check
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
from qwenmtp.model import Model, load  # noqa: E402
from qwenmtp.plan import MemoryPlan  # noqa: E402
from qwenmtp.sampling import SamplingParams  # noqa: E402
from qwenmtp.sessions import Round, Session, Turn  # noqa: E402
from qwenmtp.settings import Settings  # noqa: E402

__all__ = [
    "Cancelled",
    "CheckpointError",
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
    "SessionBusy",
    "Settings",
    "Turn",
    "VersionMismatch",
    "__version__",
    "load",
]
