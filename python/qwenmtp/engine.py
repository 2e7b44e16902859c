"""An open model: its files, text side, settings, core, and the one thread that runs it. Knows no conversation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from qwenmtp import _core
from qwenmtp.chat import ChatTemplate
from qwenmtp.errors import ContextLengthExceeded, InvalidRequest
from qwenmtp.plan import CHUNK, DType, MemoryPlan, memory_plan, prewarm_bytes, table_bytes
from qwenmtp.sampling import ResolvedSampling, SamplingParams
from qwenmtp.settings import Settings
from qwenmtp.table import row_file_of
from qwenmtp.text_files import TextFiles, read_text_files
from qwenmtp.tokenizer import Tokenizer, check_ids
from qwenmtp.weights import ModelFiles

T = TypeVar("T")

# A request over given logits rows, without a model: what `qwenmtp bench loop` times.
null_decoder = _core.NullDecoder
# An accelerator's launches for a geometry, without weights: what `qwenmtp bench dispatches` counts.
planned_launches = _core.launches


def device() -> str:
    """Where models run on this machine: `cpu`, `gpu`."""
    return str(_core.device())


class Engine:
    """A loaded model and its owner thread.

    Args:
        files: A released checkpoint, an MTPLX pack or an mlx-vlm conversion, described by `open_model_files`.
        settings: Resolved settings.
        on_progress: Called with bytes read and bytes to read while the model loads.

    Attributes:
        core: The C++ model.
        dtype: Compute type of activations and state, `float32` or `bfloat16`.
        residency: Where n-gram rows are read from: `ssd` or `resident`.

    Raises:
        ModelFormatError: Anything about the folder that is not as reference/model.md has it.
        InsufficientMemory: The weights, or a resident n-gram table beside them, exceed the budget.
    """

    def __init__(self, files: ModelFiles, settings: Settings, on_progress: Callable[[int, int], None] | None = None):
        self.files, self.settings = files, settings
        self.device = device()
        dtype = settings.model.dtype
        if dtype == "auto":  # MLX's CPU back end computes float32 several times faster than bfloat16
            dtype = "float32" if self.device == "cpu" else "bfloat16"
        self.dtype: DType = dtype
        self._owner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="qwenmtp")
        self._closed = False
        self._admitted = {False: 0, True: 0}  # largest contexts that fit, by whether they draft
        if settings.memory.limit != "auto":
            _core.set_memory_limit(settings.memory.limit)
        try:
            self.core: Any = self._load(on_progress or (lambda done, total: None))
            if settings.trace.file:
                _core.open_trace(settings.trace.file)
        except BaseException:
            self._owner.shutdown()
            raise
        resident = any(s["residency"] == "resident" for s in self.core.ple_stats)
        self.residency: Literal["ssd", "resident"] = "resident" if resident else "ssd"

    def _load(self, on_progress: Callable[[int, int], None]) -> Any:
        f, progress, plan = self.files, _core.LoadProgress(), self.plan(min(self.context, CHUNK))
        if not self.settings.memory.allow_overcommit:
            plan.check()
        total = f.n_bytes - (0 if plan.table else table_bytes(f))
        loading = self._owner.submit(
            _core.Model,
            f.geometry,
            f.layout,
            f.files,
            f.tensors,
            f.quant,
            self.dtype == "float32",
            progress,
            self._ple(plan.table),
        )
        while not loading.done():
            wait([loading], timeout=0.1)
            on_progress(progress.bytes, total)
        core = loading.result()
        core.prewarm(prewarm_bytes(self.plan(self.context), table_bytes(f), self.settings.ple.prewarm))
        return core

    def plan(self, context: int, speculate: bool = True, settings: Settings | None = None) -> MemoryPlan:
        """The memory plan of one session of `context` tokens."""
        s = settings or self.settings
        return memory_plan(
            self.files,
            context=context,
            dtype=self.dtype,
            residency=s.ple.residency,
            budget=s.memory.budget,
            speculate=speculate,
            hot_bytes=s.ple.hot_bytes if s.ple.staging else 0,
            chunk=s.prefill.chunk,
            boundaries=s.session.boundaries,
            device=self.device,
        )

    def admit(self, context: int, speculate: bool, settings: Settings) -> None:
        """Refuse a request that would exceed the budget, before anything is computed.

        Raises:
            InsufficientMemory: `details` is the plan of one session of `context` tokens.
        """
        own = settings is self.settings
        if settings.memory.allow_overcommit or (own and context <= self._admitted[speculate]):
            return
        self.plan(context, speculate, settings).check()
        if own:
            self._admitted[speculate] = context

    def gdn_compiled(self, settings: Settings) -> str:
        """Why GDN layers are not compiled.

        MLX would fuse element-wise operators, and a layer's launches are kernels of our own alone
        (tests/decode/test_launches.py); on the CPU it would call a C++ compiler at run time.
        """
        if settings.gdn.compile == "off":
            return "off"
        return "cpu back end" if self.device == "cpu" else "no dispatch saved"

    def expect(self, held: list[int], ids: list[int]) -> None:
        """Start reading the n-gram rows that a prompt needs first, behind what the live state holds of it."""
        n = len(held) if ids[: len(held)] == held else 0

        def request() -> None:
            self.core.expect(ids[max(0, n - 8) : n], ids[n : n + self.settings.prefill.chunk])

        if self.settings.ple.early_first_gather and not self._closed:
            self._owner.submit(request)

    def _ple(self, resident_bytes: int) -> Any:
        """How the n-gram table is read; with `resident_bytes`, from memory."""
        ple = self.settings.ple
        row_file = Path(ple.row_file) if ple.row_file else row_file_of(self.files.path)
        return _core.PleOptions(
            n_threads=ple.threads,
            hot_bytes=ple.hot_bytes,
            read_ahead=ple.lookahead,
            staging=ple.staging,
            row_file=str(row_file) if ple.row_file or row_file.exists() else "",
            checksums=True,
            resident_budget=resident_bytes or None,
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
        if self.settings.trace.file:
            _core.close_trace()
