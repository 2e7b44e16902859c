"""The door of the package: `load` and `Model`. Opens, hands out sessions, closes; computes nothing itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwenmtp.chat import ChatTemplate
from qwenmtp.engine import Engine
from qwenmtp.plan import MemoryPlan
from qwenmtp.sessions import Depth, Mode, Session
from qwenmtp.settings import Settings
from qwenmtp.tokenizer import Tokenizer
from qwenmtp.weights import open_model_files


class Model:
    """A loaded model. Use as a context manager, or call `close`.

    Attributes:
        config: The parsed config.json.
        settings: Every setting in effect, with its provenance.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self.config: dict[str, Any] = engine.files.config
        self.settings: Settings = engine.settings

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The model's folder."""
        return self._engine.files.path

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back."""
        return self._engine.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """Conversations to prompt text."""
        return self._engine.chat_template

    @property
    def has_mtp(self) -> bool:
        """Whether sessions may draft."""
        return self._engine.has_mtp

    def info(self) -> dict[str, Any]:
        """Layout, geometry, device, compute type and bytes read by stored form."""
        engine = self._engine
        return {
            "path": str(engine.files.path),
            "layout": engine.files.layout,
            "device": engine.device,
            "dtype": engine.dtype,
            "has_mtp": engine.has_mtp,
            "file_bytes": engine.files.n_bytes,
            "geometry": engine.files.geometry,
            "ngram_tables": engine.run(lambda: engine.core.ple_stats),
        }

    def plan(self, context: int | None = None) -> MemoryPlan:
        """Memory that one session needs, by part, against this machine's budget.

        Args:
            context: Tokens of the session, prompt and answer; None is the model's whole context.

        Raises:
            InvalidRequest: The context is out of range.
        """
        engine = self._engine
        return engine.plan(engine.context if context is None else context, self.has_mtp)

    def session(self, id: str | None = None, mode: Mode = "mtp", depth: Depth = 3, **overrides: Any) -> Session:
        """A new, empty timeline.

        Args:
            id: Its name.
            mode: `mtp` to draft and verify, `ar` for one token a forward.
            depth: Drafts a round: 1..5, or "auto" to choose by measured cost and acceptance.
            **overrides: Settings of this session alone, such as `context_copy=False`.

        Raises:
            InvalidRequest: An argument is out of range, or `mtp` on a model without a head.
            ConfigError: An override has an unknown name or a value that is not accepted.
        """
        return Session(self._engine, id, mode, depth, self.settings.override(**overrides) if overrides else None)

    def close(self) -> None:
        """Free the weights; sessions of this model are unusable from then on."""
        self._engine.close()


def load(
    path: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    **overrides: Any,
) -> Model:
    """Open a model folder: a released checkpoint, an MTPLX pack or an mlx-vlm conversion.

    Args:
        path: The folder.
        settings: Resolved settings; None resolves them from the environment and the pack.
        on_progress: Called with bytes read and bytes to read while the weights load.
        **overrides: Settings by keyword, such as `dtype="float32"`; they count before everything else.

    Raises:
        ModelFormatError: The folder is not a qwen4_exp model that this package can run.
        InsufficientMemory: Weights, or a resident n-gram table beside them, exceed the budget; `details` is the plan.
        ConfigError: A setting has an unknown name or a value that is not accepted.
    """
    files = open_model_files(Path(path))
    if settings is None:
        settings = Settings.from_env(pack=files.path, **overrides)
    elif overrides:
        settings = settings.override(**overrides)
    return Model(Engine(files, settings, on_progress))
