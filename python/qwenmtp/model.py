"""The door of the package: `load` and `Model`. Opens, hands out sessions, closes; computes nothing itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwenmtp.archive import Archive
from qwenmtp.bank import SessionBank
from qwenmtp.chat import ChatTemplate
from qwenmtp.engine import Engine
from qwenmtp.plan import MemoryPlan
from qwenmtp.request import Depth, Mode
from qwenmtp.sessions import Session
from qwenmtp.settings import Settings
from qwenmtp.store import CheckpointStore
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
        self._archive = Archive(engine)
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

    def session(
        self, id: str | None = None, mode: Mode = "mtp", depth: Depth = 3, *, cache_scope: str = "", **overrides: Any
    ) -> Session:
        """A new, empty timeline.

        Args:
            id: Its name. A named session shares prefixes with others in memory and on disk.
            mode: `mtp` to draft and verify, `ar` for one token a forward.
            depth: Drafts a round: 1..5, or "auto" to choose by measured cost and acceptance.
            cache_scope: States are shared within a scope only: a template, a set of tools, a tenant.
            **overrides: Settings of this session alone, such as `context_copy=False`.

        Raises:
            InvalidRequest: An argument is out of its range, or `mtp` on a model without a head.
            ConfigError: An override has an unknown name or a value that is not accepted.
        """
        settings = self.settings.override(**overrides) if overrides else None
        return Session(self._archive, id, mode, depth, settings, cache_scope)

    def restore(self, path: str | os.PathLike[str], depth: Depth | None = None, cache_scope: str = "") -> Session:
        """A nameless session from a file of `Session.save`. The mode is the file's; whose it was does not matter.

        Args:
            path: The file; it is never removed.
            depth: Drafts a round that the file was saved with; None is 3.
            cache_scope: Its scope.

        Raises:
            CheckpointError: The file was refused; `outcome` is the row of docs/checkpoint-format.md.
        """
        chosen: Depth = 3 if depth is None else depth
        found, mode = self._archive.read(
            path, lambda mode: self._archive.identity(mode, chosen, self.settings, cache_scope)
        )
        return Session(self._archive, None, "mtp" if mode == "mtp" else "ar", chosen, None, cache_scope, found)

    @property
    def bank(self) -> SessionBank:
        """The states in memory."""
        return self._archive.bank

    @property
    def store(self) -> CheckpointStore | None:
        """The files of named sessions with default mode, depth and scope; None where checkpoints are off."""
        mode = "mtp" if self.has_mtp else "ar"
        return self._archive.store(self._archive.identity(mode, 3, self.settings, "").digest())

    def close(self) -> None:
        """Write what named sessions have not written yet, for at most ten seconds, and free states and weights.

        Sessions of this model are unusable from then on.
        """
        self._archive.close()
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
