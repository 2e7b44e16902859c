"""Conversations on an open model: one request at a time each. Owns requests; timelines own states, the core draws."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qwenmtp import _core
from qwenmtp.archive import Archive, Restored
from qwenmtp.errors import SessionBusy
from qwenmtp.identity import SessionIdentity
from qwenmtp.request import Depth, Mode, check_limits, check_mode, core_options
from qwenmtp.sampling import SamplingParams
from qwenmtp.settings import Settings
from qwenmtp.store import SaveReport
from qwenmtp.tensors import Tensor, as_tensors
from qwenmtp.timeline import Start, Timeline
from qwenmtp.tokenizer import StopStrings
from qwenmtp.turns import Answer, Round, Turn

Progress = Callable[[int, int], None]


class Session:
    """One timeline: its live state serves the next prompt that extends it.

    A named session also shares prefixes with others of its identity, in memory and on disk, and is written there behind
    the user's back; a session without a name keeps to itself. Methods may be called from any thread, one request at a
    time; a second one raises SessionBusy.

    Attributes:
        id: Name of the timeline, or None.
        mode: `mtp` drafts with the head, `ar` is plain autoregression.
        depth: Drafts a round, 1..5 or "auto".
        last_turn: The newest finished answer.
    """

    def __init__(
        self,
        archive: Archive,
        id: str | None = None,
        mode: Mode = "mtp",
        depth: Depth = 3,
        settings: Settings | None = None,
        cache_scope: str = "",
        restored: Restored | None = None,
    ):
        engine = archive.engine
        check_mode(mode, depth, engine.has_mtp)
        self.id, self.mode, self.depth = id, mode, depth
        self.last_turn: Turn | None = None
        self._archive, self._engine, self._scope = archive, engine, cache_scope
        self._settings = settings or engine.settings
        identity = archive.identity(mode, depth, self._settings, cache_scope)
        self._timeline = Timeline(archive, identity, id, self._settings)
        if restored is not None:
            self._timeline.take(restored.state, restored.finish, "store")
        self._busy = threading.Lock()
        self._decoder: Any = None
        self._cancelled = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    @property
    def ids(self) -> list[int]:
        """Every token of the timeline."""
        return [int(i) for i in self._timeline.ids]

    @property
    def identity(self) -> SessionIdentity:
        """What its states may be shared with."""
        return self._timeline.identity

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        max_tokens: int = 256,
        stop: str | Sequence[str] = (),
        ignore_stop: bool = False,
        logprobs: int | None = None,
        deadline: float | None = None,
        on_progress: Progress | None = None,
    ) -> Iterator[Round]:
        """Answer a prompt, round by round.

        Args:
            prompt: The whole context, as text or token ids; what it shares with the live state is not computed again.
            params: How to draw; None takes the model's recommendation.
            max_tokens: Tokens at most, the stop token included.
            stop: Strings that end the answer; nothing from them on is released or kept.
            ignore_stop: Go on through stop tokens.
            logprobs: Alternatives per token, 0..128; None gives none.
            deadline: Seconds from now after which the answer ends where it is; the state is then as before the call.
            on_progress: Called with prompt tokens done and total while the prompt is read.

        Yields:
            Round: Never empty of both ids and text.

        Raises:
            InvalidRequest: An argument is out of its range.
            ContextLengthExceeded: The prompt leaves no room.
            InsufficientMemory: Prompt and answer would exceed the memory budget; `details` is the plan.
            SessionBusy: Another request of this session is running.
            PleReadError, NonFiniteLogits: The state is then as before the call.
        """
        engine = self._engine
        ids = engine.prompt_ids(prompt)
        resolved = engine.resolve(params or SamplingParams())
        check_limits(max_tokens, logprobs, deadline)
        stops = StopStrings(stop)
        options = core_options(
            self._settings,
            resolved,
            mode=self.mode,
            depth=self.depth,
            n_prompt=len(ids),
            max_tokens=min(max_tokens, engine.context - len(ids)),
            stops=() if ignore_stop else engine.stop_ids,
            logprobs=logprobs,
            deadline=deadline,
        )
        engine.admit(len(ids) + options["max_tokens"], self.mode == "mtp", self._settings)
        engine.expect(self.ids, ids)
        return self._rounds(ids, options, stops, on_progress)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None, **kwargs: Any
    ) -> Iterator[Round]:
        """Answer a conversation through the model's chat template; keywords as in `generate`.

        Args:
            messages: Mappings with `role` and `content`.
            params: As in `generate`.
            **kwargs: As in `generate`; `tools` and `template_variables` go to the template.
        """
        tools, variables = kwargs.pop("tools", None), kwargs.pop("template_variables", {})
        return self.generate(self._engine.chat_template.render(messages, tools=tools, **variables), params, **kwargs)

    def cancel(self) -> None:
        """End the running request at its next step; from any thread. The state is then as before the request."""
        self._cancelled = True
        decoder = self._decoder
        if decoder is not None:
            decoder.cancel()

    def reset(self) -> None:
        """Forget the timeline; what is stored elsewhere stays."""
        with self._held():
            self._timeline.reset()

    def fork(self, id: str | None = None) -> Session:
        """A second timeline from here; both go on independently."""
        with self._held():
            other = Session(self._archive, id, self.mode, self.depth, self._settings, self._scope)
            if len(self._timeline.ids):
                other._timeline.take(self._timeline.forked(), self._timeline.finish)
            return other

    def save(self, path: str | os.PathLike[str] | None = None) -> SaveReport:
        """Write the timeline, whole or not at all.

        Args:
            path: The file; None writes the session's own file in the store, which needs a name.

        Raises:
            InvalidRequest: Nothing to save, or no name and no path.
            CheckpointError: `busy` (disk full, I/O error) or `unsafe_path`; an older file is as it was.
        """
        with self._held():
            return self._timeline.save(path)

    def resume(self) -> bool:
        """Take up the timeline that is stored under the session's name, if there is one that may be used.

        Returns:
            Whether there was. What was wrong with a file is told by the next answer's `reuse["miss"]`.
        """
        with self._held():
            return self._timeline.resume()

    def state(self) -> dict[str, Any]:
        """Of the live state: `tokens`, `history` rows, `mode`, `depth`, `boundaries`, `bytes` in memory, `identity`."""
        entry = self._timeline.entry
        live = entry.state if entry else None
        return {
            "tokens": len(self._timeline.ids),
            "history": live.history_len if live else 0,
            "mode": self.mode,
            "depth": self.depth,
            "boundaries": list(entry.boundaries) if entry and live else [],
            "bytes": entry.n_bytes if entry and live else 0,
            "identity": self.identity.digest().hex(),
        }

    def first_difference(self, other: Session) -> str | None:
        """Where the live states of two sessions part first: tensor, index and values; None when all bits are equal."""
        with self._held(), other._held():
            a, b = self._timeline.whole(), other._timeline.whole()
            found: str | None = self._engine.run(lambda: a.first_difference(b))
            return found

    def export(self) -> dict[str, Tensor]:
        """A copy of every tensor of the live state, in the order of a checkpoint.

        Returns:
            The trunk's layers (`trunk.0.gdn_ssm`), the draft head's history (`mtp.keys`), the rows of the last token
            (`final.logits`, `final.hidden`).
        """
        with self._held():
            return as_tensors(self._engine.run(self._timeline.whole().tensors))

    def traffic(self, ids: Sequence[int], *, draft: bool = False) -> dict[str, tuple[int, int]]:
        """What a forward of `ids` behind the live state, which stays as it is, would run and move.

        Args:
            ids: Its rows.
            draft: Of one draft by the MTP head behind the last token instead; `ids` is its one token.

        Returns:
            By name of node: their number, and the bytes of their inputs and outputs, gathered operands by rows taken.
        """
        with self._held():
            state, core = self._timeline.whole(), self._engine.core
            found: dict[str, tuple[int, int]] = self._engine.run(lambda: _core.traffic(core, state, list(ids), draft))
            return found

    def _held(self) -> _Held:
        return _Held(self._busy, self.id)

    def _rounds(
        self, ids: list[int], options: dict[str, Any], stops: StopStrings, on_progress: Progress | None
    ) -> Iterator[Round]:
        engine = self._engine
        with self._held():
            self._cancelled = False
            started = time.perf_counter()
            start = self._timeline.start(ids, len(ids) + options["max_tokens"])
            options["boundaries"] = start.boundaries
            try:
                decoder = engine.run(lambda: _core.Decoder(engine.core, start.state, ids, options))
            except BaseException:
                self._timeline.release(start)
                raise
            self._decoder = decoder
            answer = Answer(engine.tokenizer.stream() if engine.texts else None, stops)
            first = None
            ended = False
            try:
                if self._cancelled:  # between generate() and here
                    decoder.cancel()
                while not decoder.prefilled and not decoder.done:
                    done = engine.run(decoder.prefill)
                    if on_progress is not None:
                        on_progress(done, len(ids))
                if not decoder.done:
                    self._timeline.keep_prompt(start, len(ids))
                while not decoder.done and stops.matched is None:
                    released = engine.run(decoder.step)
                    first = first or time.perf_counter() - started
                    shown, text = answer.push(released["ids"])
                    if shown or text:
                        logs = tuple(released["logprobs"][: len(shown)])
                        yield Round(shown, text, released["drafted"], released["accepted"], logs)
                rest = answer.flush()
                ended = True
                seconds = {"first_token": first or 0.0, "total": time.perf_counter() - started}
                self.last_turn = self._turn(decoder, answer, start, len(ids), seconds)
                if rest:
                    yield Round((), rest, 0, 0)
            finally:
                self._decoder = None
                if not ended:  # the consumer stopped pulling, or a step raised
                    engine.run(decoder.abandon)
                self._timeline.release(start)

    def _turn(self, decoder: Any, answer: Answer, start: Start, n_prompt: int, seconds: dict[str, float]) -> Turn:
        """Commits the state, unless the answer was cut short."""
        finish, origin = decoder.finish_reason, decoder.stop_origin
        ids = tuple(decoder.tokens)
        if answer.stops.matched is not None:
            finish, origin, ids = "stop", "stop_string", tuple(answer.ids)
            self._engine.run(decoder.abandon)
            refused = "stop_string"
        elif finish in ("cancelled", "deadline"):  # the decoder has put the state back
            refused = finish
        else:
            refused = self._engine.run(decoder.finish)
            if not refused:
                self._timeline.commit(start, finish)
        stats = dict(decoder.statistics)
        stats["gdn_compiled"] = self._engine.gdn_compiled(self._settings)
        stats["ple"] |= {"residency": self._engine.residency, "staging": self._settings.ple.staging}
        return Turn(
            ids=ids,
            text=answer.text,
            finish=finish,
            stop_origin=origin if finish == "stop" else None,
            usage={
                "prompt": n_prompt,
                "cached": start.restored,
                "prefilled": n_prompt - start.restored,
                "completion": len(ids),
            },
            timing={**stats.pop("seconds"), **seconds},
            stats=stats,
            reuse=start.reuse,
            final={"committed": not refused, "reason": refused or None},
        )


class _Held:
    """The right to use a session, or SessionBusy at once."""

    def __init__(self, lock: threading.Lock, name: str | None):
        self._lock, self._name = lock, name

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise SessionBusy(f"[session] {self._name or 'the session'} is answering another request")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
