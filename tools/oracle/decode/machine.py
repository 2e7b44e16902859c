"""What the independent decoder drives: scripted trunk and draft head, the consumer's wire, copy, repetition."""

from __future__ import annotations

from typing import Any

import numpy as np
from scripted_math import SALT, Rows, fold, history_digest

Hidden = tuple[int, int, int]  # hash, tag, tokens consumed
Output = tuple[np.ndarray, Hidden]  # logits row, hidden


class Cancelled(Exception):
    """The consumer raised."""


class ForwardFailed(Exception):
    """The scripted trunk refused."""


class Machine:
    """Trunk tokens, draft history, and the call log of the fixtures."""

    def __init__(self, model: dict[str, Any], fail_at: int | None = None) -> None:
        self.rows = Rows(**{k: v for k, v in model.items() if k not in ("eos", "mtp")})
        self.tokens: list[int] = []
        self.hashes: list[int] = [SALT]
        self.history: list[tuple[int, int, int, int]] = []
        self.log: list[list[Any]] = []
        self.fail_at = fail_at

    def forward(self, tokens: list[int]) -> list[Output]:
        self.log.append(["trunk", list(tokens)])
        if self.fail_at is not None and len(self.log) > self.fail_at:
            raise ForwardFailed
        out = []
        for t in tokens:
            self.tokens.append(t)
            self.hashes.append(fold(self.hashes[-1], t))
            n = len(self.tokens)
            out.append((self.rows.trunk_row(self.hashes[-1], n), (self.hashes[-1], 0, n)))
        return out

    def keep(self, n_tokens: int) -> None:
        del self.tokens[n_tokens:]
        del self.hashes[n_tokens + 1 :]

    def draft(self, hidden: Hidden, token: int, depth: int, history: list[tuple[int, int, int, int]]) -> Output:
        h, tag, n = hidden
        self.log.append(["draft", depth, n, tag, token])
        history.append((h, tag, n, token))
        after = fold(h, token)
        return self.rows.draft_row(after, n + 1, history_digest(history)), (after, 1, n + 1)

    def append(self, hiddens: list[Hidden], tokens: list[int]) -> None:
        if not tokens:
            return
        for (h, tag, n), t in zip(hiddens, tokens, strict=True):
            self.history.append((h, tag, n, t))
        self.log.append(["history", [[n, tag, t] for _h, tag, n, t in self.history[-len(tokens) :]]])

    def history_rows(self) -> list[list[int]]:
        return [[n, tag, t] for _h, tag, n, t in self.history]

    def prefill(self, prompt: list[int], committed: bool) -> Output:
        body = [hidden for _row, hidden in self.forward(prompt[:-1])] if len(prompt) > 1 else []
        last = self.forward([prompt[-1]])[0]
        if committed:
            self.append(body, prompt[1:])
        return last


class Repetition:
    """decode.md 7: the stop, and how much of the tail may be on the wire."""

    def __init__(self, armed: bool, env: dict[str, str]) -> None:
        def get(name: str, default: int) -> int:
            return int(env.get("MTPLX_REPETITION_STOP_" + name, default))

        self.armed = armed
        self.min_tokens = max(1, get("MIN_TOKENS", 768))
        self.min_rep = max(1, get("MIN_REPEATED_TOKENS", 192))
        self.min_n = max(2, get("MIN_REPEATS", 4))
        self.min_b = max(1, get("MIN_BLOCK_TOKENS", 1))
        self.max_b = max(self.min_b, get("MAX_BLOCK_TOKENS", 96))
        self.max_cycle = get("MAX_CYCLE_TOKENS", 8192)
        self.copies = max(2, get("MIN_CYCLE_COPIES", 3))
        self.span = max(1, get("MIN_CYCLE_SPAN_TOKENS", 512))
        self.window = max(self.min_n * self.max_b, self.min_rep + self.max_b) + 64 if armed else 0
        self.seen = 0

    @staticmethod
    def run_length(toks: list[int], period: int, end: int) -> int:
        r = 0
        while end - 1 - r - period >= 0 and toks[end - 1 - r] == toks[end - 1 - r - period]:
            r += 1
        return r

    def check(self, toks: list[int]) -> tuple[str, int, int, int] | None:
        """None or (reason, block, repeats, trimmed); trims in place."""
        if not self.armed:
            return None
        n, best = len(toks), None
        if n >= self.min_tokens:
            for b in range(self.min_b, min(self.max_b, n // self.min_n) + 1):
                reps = self.run_length(toks, b, n) // b + 1
                enough = reps >= self.min_n and reps * b >= self.min_rep
                if enough and (best is None or reps * b > best[3]):
                    best = ("exact_repeated_token_suffix", b, reps, reps * b)
        if best:
            del toks[n - best[3] :]
            return best
        start, self.seen = self.seen, n
        for end in range(max(start + 1, self.min_tokens), n + 1):
            for b in range(self.max_b + 1, min(self.max_cycle, end) + 1):
                r = self.run_length(toks, b, end)
                if r >= 32 and r >= max((self.copies - 1) * b, self.span - b):
                    return ("long_cycle", b, (r + b) // b, 0)
        return None

    def limit(self, toks: list[int]) -> int:
        """How many tokens may be on the wire now."""
        n = len(toks)
        if self.window <= 0:
            return n
        floor = max(2, self.min_rep // 2)
        periods = range(self.min_b, min(self.max_b, n // 2) + 1) if n >= floor else range(0)
        reps = ((self.run_length(toks, b, n) // b + 1, b) for b in periods)
        if not any(r >= 2 and r * b >= floor for r, b in reps):
            return n
        return max(n - self.window, min(n, max(0, self.min_tokens - self.window)))


class Wire:
    """Batches handed to the consumer: no stop tokens, nothing that a repetition trim could take back."""

    def __init__(self, stops: set[int], repetition: Repetition, abort_after: int | None) -> None:
        self.stops, self.repetition, self.abort_after = stops, repetition, abort_after
        self.sent = 0
        self.batches: list[list[int]] = []

    def push(self, new: list[int]) -> None:
        new = [t for t in new if t not in self.stops]
        if new:
            self.batches.append(new)
            if self.abort_after is not None and len(self.batches) >= self.abort_after:
                raise Cancelled

    def emit(self, toks: list[int]) -> None:
        limit = self.repetition.limit(toks)
        if limit > self.sent:
            chunk, self.sent = toks[self.sent : limit], limit
            self.push(chunk)

    def flush(self, toks: list[int]) -> None:
        if self.repetition.window > 0:
            self.sent = min(self.sent, len(toks))
            chunk, self.sent = toks[self.sent :], len(toks)
            self.push(chunk)


class CopyIndex:
    """decode.md 6: where the last six tokens occur in the prompt."""

    MIN, MAX, LADDER = 6, 10, (8, 12, 16, 24, 32)

    def __init__(self, prompt: list[int]) -> None:
        self.prompt = prompt
        self.after: dict[tuple[int, ...], list[int]] = {}
        for end in range(self.MIN, len(prompt) + 1):
            self.after.setdefault(tuple(prompt[end - self.MIN : end]), []).append(end)

    def find(self, joined: list[int]) -> tuple[int, int] | None:
        """(position after the match, extension), the longest extension, newest first."""
        n, best = len(joined), None
        if n < self.MIN + 1:
            return None
        for pos in reversed(self.after.get(tuple(joined[-self.MIN :]), [])[-32:]):
            if pos >= n or pos >= len(self.prompt):
                continue
            ext, first = 0, pos - self.MIN - 1
            while ext < self.MAX - self.MIN and first >= ext and joined[first - ext] == joined[n - self.MIN - 1 - ext]:
                ext += 1
            if best is None or ext > best[1]:
                best = (pos, ext)
                if ext == self.MAX - self.MIN:
                    break
        return best


class CopyPolicy:
    """How long a block may be, and when copying pauses."""

    def __init__(self) -> None:
        self.average, self.rounds, self.suspend, self.backoff = 0.5, 0, 0, 64
        self.suspensions = 0

    def size(self, extension: int) -> int:
        cap = 24 if self.rounds >= 2 and self.average >= 0.5 else 8
        return min(CopyIndex.LADDER[min(extension, 4)], cap)

    def note(self, ratio: float, emitted: int) -> None:
        self.average, self.rounds = 0.7 * self.average + 0.3 * ratio, self.rounds + 1
        if ratio >= 0.5:
            self.backoff = 64
        if self.rounds >= 3 and self.average < 0.35:
            self.suspend = emitted + self.backoff
            self.backoff = min(2 * self.backoff, 4096)
            self.average, self.rounds = 0.5, 0
            self.suspensions += 1
