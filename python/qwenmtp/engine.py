"""An open model: its files, text side, settings, core, and the one thread that runs it. Knows no conversation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from qwenmtp import _core
from qwenmtp.chat import ChatTemplate
from qwenmtp.errors import ContextLengthExceeded, InvalidRequest
from qwenmtp.plan import CHUNK, DType, memory_plan
from qwenmtp.sampling import ResolvedSampling, SamplingParams
from qwenmtp.settings import Settings
from qwenmtp.table import row_file_of
from qwenmtp.text_files import TextFiles, read_text_files
from qwenmtp.tokenizer import Tokenizer, check_ids
from qwenmtp.weights import ModelFiles

T = TypeVar("T")

# A request over given logits rows, without a model: what `qwenmtp bench loop` times.
null_decoder = _core.NullDecoder


class Engine:
    """A loaded model and its owner thread.

    Args:
        files: A released checkpoint, an MTPLX pack or an mlx-vlm conversion, described by `open_model_files`.
        settings: Resolved settings.
        on_progress: Called with bytes read and bytes to read while the model loads.

    Attributes:
        core: The C++ model.
        dtype: Compute type of activations and state, `float32` or `bfloat16`.

    Raises:
        ModelFormatError: Anything about the folder that is not as reference/model.md has it.
    """

    def __init__(self, files: ModelFiles, settings: Settings, on_progress: Callable[[int, int], None] | None = None):
        self.files, self.settings = files, settings
        self.device: str = _core.device()
        dtype = settings.model.dtype
        if dtype == "auto":  # MLX's CPU back end computes float32 several times faster than bfloat16
            dtype = "float32" if self.device == "cpu" else "bfloat16"
        self.dtype: DType = dtype
        self._owner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="qwenmtp")
        self._closed = False
        try:
            self.core: Any = self._load(on_progress or (lambda done, total: None))
        except BaseException:
            self._owner.shutdown()
            raise

    def _load(self, on_progress: Callable[[int, int], None]) -> Any:
        f, progress = self.files, _core.LoadProgress()
        loading = self._owner.submit(
            _core.Model,
            f.geometry,
            f.layout,
            f.files,
            f.tensors,
            f.quant,
            self.dtype == "float32",
            progress,
            self._ple(),
        )
        while not loading.done():
            wait([loading], timeout=0.1)
            on_progress(progress.bytes, f.n_bytes)
        return loading.result()

    def _ple(self) -> Any:
        """How the n-gram table is read. A resident table must fit beside the weights."""
        ple, memory = self.settings.ple, self.settings.memory
        plan = memory_plan(
            self.files,
            context=min(self.context, CHUNK),
            dtype=self.dtype,
            residency=ple.residency,
            budget=memory.budget,
            hot_bytes=ple.hot_bytes,
        )
        resident = plan.residency == "resident"
        if resident and not memory.allow_overcommit:
            plan.check()
        row_file = Path(ple.row_file) if ple.row_file else row_file_of(self.files.path)
        return _core.PleOptions(
            n_threads=ple.threads,
            hot_bytes=ple.hot_bytes,
            read_ahead=ple.lookahead,
            row_file=str(row_file) if ple.row_file or row_file.exists() else "",
            checksums=True,
            resident_budget=plan.table if resident else None,
        )

    @cached_property
    def texts(self) -> TextFiles | None:
        """The text files of a folder with a tokenizer; one without serves token ids only."""
        return read_text_files(self.files.path) if (self.files.path / "tokenizer.json").exists() else None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ModelFormatError where there is none."""
        return Tokenizer(self.texts or read_text_files(self.files.path))

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's chat templates. Raises ModelFormatError without a tokenizer."""
        return ChatTemplate(self.texts or read_text_files(self.files.path))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        return self.tokenizer.stop_ids if self.texts else ()

    def resolve(self, params: SamplingParams) -> ResolvedSampling:
        """Every number of a request, with the pack's recommendations where it leaves them open."""
        if self.texts is None:
            return params.resolve({})
        return params.resolve(self.texts.generation_config, self.texts.runtime.get("recommended_draft_sampler"))

    @property
    def context(self) -> int:
        """Positions the model was made for, prompt and answer together."""
        return int(self.files.geometry["max_position"])

    @property
    def has_mtp(self) -> bool:
        """Whether the checkpoint carries an MTP head."""
        return bool(self.core.has_mtp)

    @property
    def residency(self) -> str:
        """Where n-gram rows are read from: `resident` or `ssd`."""
        return "resident" if any(s["residency"] == "resident" for s in self.core.ple_stats) else "ssd"

    def prompt_ids(self, prompt: Any) -> list[int]:
        """Token ids of a prompt given as text or as ids.

        Raises:
            InvalidRequest: The prompt is empty, or an id is outside the vocabulary.
            ContextLengthExceeded: No room is left for an answer.
        """
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        else:
            ids = check_ids(prompt, int(self.files.geometry["vocab_size"]))
        if not ids:
            raise InvalidRequest("[engine.prompt] the prompt is empty, expected at least one token")
        if len(ids) >= self.context:
            raise ContextLengthExceeded(
                f"[engine.prompt] {len(ids)} tokens, expected fewer than {self.context}",
                details={"prompt_tokens": len(ids), "context": self.context},
            )
        return ids

    def run(self, work: Callable[[], T]) -> T:
        """Do `work` on the owner thread and wait for it; whatever it raises is raised here."""
        if self._closed:
            raise InvalidRequest("[engine.run] the model is closed")
        future: Future[T] = self._owner.submit(work)
        return future.result()

    def close(self) -> None:
        """Free the model. Later calls raise InvalidRequest; closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self._owner.submit(self._drop).result()
            self._owner.shutdown()

    def _drop(self) -> None:
        self.core = None
