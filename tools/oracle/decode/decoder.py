"""The loops of decode.md 3, 4 and 6 on the scripted machine: no MTPLX, no MLX."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from machine import Cancelled, CopyIndex, CopyPolicy, ForwardFailed, Hidden, Machine, Output, Repetition, Wire
from rules import BlockLaw, Dist, Draws, accept_p, penalised, point, residual, sample, shape

Record = dict[str, Any]


def stop_set(spec: Record) -> set[int]:
    if spec.get("stop") is not None:
        return set(spec["stop"])
    eos = spec["model"].get("eos")
    return set() if eos is None else {eos}


def text_of(toks: list[int], stops: set[int]) -> str:
    toks = list(toks)
    while toks and toks[-1] in stops:
        toks.pop()
    return ",".join(str(t) for t in toks)


class Run:
    """What both loops share: the request, the machine, the completion so far."""

    def __init__(self, spec: Record) -> None:
        self.spec, self.env = spec, spec.get("env", {})
        self.m = Machine(spec["model"], spec.get("fail_forward_at"))
        self.cfg, self.limit, self.prompt = spec["sampler"], spec["max_tokens"], spec["prompt"]
        self.stops = stop_set(spec)
        self.draws = Draws(spec["seed"])
        self.repetition = Repetition(spec.get("repetition_stop", False), self.env)
        self.wire = Wire(self.stops, self.repetition, spec.get("raise_in_callback"))
        self.penal = bool(self.cfg["presence_penalty"] or self.cfg["frequency_penalty"])
        self.capture = spec.get("capture", True)
        self.toks: list[int] = []
        self.hit: tuple[str, int, int, int] | None = None

    def counts(self, more: list[int] | None = None) -> Counter[int] | None:
        return Counter(self.toks) + Counter(more or []) if self.penal else None

    def replay(self) -> Record:
        seen: Record = {"calls": self.m.log, "callbacks": self.wire.batches}
        try:
            self.loop()
            self.wire.flush(self.toks)
        except Cancelled:
            return seen | {"raises": "StopNow", "draw_trace": self.draws.trace}
        except ForwardFailed:
            return seen | {"raises": "RuntimeError", "draw_trace": self.draws.trace}
        return seen | self.outcome() | {"tokens": self.toks, "text": text_of(self.toks, self.stops), "rep": self.hit}

    def loop(self) -> None:
        raise NotImplementedError

    def outcome(self) -> Record:
        raise NotImplementedError


class ArRun(Run):
    forwards = 0

    def loop(self) -> None:
        row, _ = self.m.prefill(self.prompt, committed=False)
        for step in range(self.limit):
            token, _ = sample(row, self.cfg, self.draws, self.counts())
            self.toks.append(token)
            self.wire.emit(self.toks)
            self.hit = self.repetition.check(self.toks)
            if self.hit or step + 1 >= self.limit or token in self.stops:
                break
            row, _ = self.m.forward([token])[0]
            self.forwards += 1

    def outcome(self) -> Record:
        stopped = any(t in self.stops for t in self.toks)
        finish = "length" if not stopped and len(self.toks) >= self.limit else "stop"
        final = None
        if self.capture and self.toks and not self.hit:
            try:
                self.m.forward([self.toks[-1]])
                final = {
                    "trunk_tokens": list(self.m.tokens), "history": None, "safe_to_commit": True,
                    "generated_token_ids": list(self.toks), "finish_reason": finish, "policy": "cycle",
                }  # fmt: skip
            except ForwardFailed:
                final = None
        return {"finish_reason": finish, "final": final, "draw_trace": self.draws.trace, "verify_calls": self.forwards}


class MtpRun(Run):
    def __init__(self, spec: Record) -> None:
        super().__init__(spec)
        draft = spec.get("draft_sampler") or self.cfg
        self.draft_cfg = {**draft, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        self.depth = spec["depth"]
        self.capture_lane = self.env.get("MTPLX_FAMILY_CAPTURE_COMMIT") == "1"
        self.committed = spec.get("history", "committed") != "cycle"
        self.greedy = self.cfg["temperature"] <= 0
        self.block_law = spec.get("law") == "block" and not self.penal and not self.greedy
        self.reset_at = int(self.env.get("MTPLX_MTP_HISTORY_LIVE_RESET_THRESHOLD", 16384))
        self.copying = self.env.get("MTPLX_CONTEXT_COPY") != "0" and not self.penal
        self.index = CopyIndex(self.prompt) if self.copying else None
        self.policy = CopyPolicy()
        self.pending: int | None = None
        self.origin: str | None = None
        self.appended = 0
        self.n: Counter[str] = Counter()
        self.accepted, self.drafted = [0] * self.depth, [0] * self.depth
        self.at: Output

    # ---- one round --------------------------------------------------------------
    def loop(self) -> None:
        self.at = self.m.prefill(self.prompt, self.committed)
        while len(self.toks) < self.limit:
            self.hit = self.repetition.check(self.toks)
            if self.hit:
                self.wire.sent = min(self.wire.sent, len(self.toks))
                return
            primary = self.primary()
            if len(self.toks) >= self.limit or primary in self.stops:
                self.origin = "primary" if primary in self.stops else None
                self.pending = primary  # emitted, never forwarded: the final commit's
                return
            width = min(self.depth, self.limit - len(self.toks))
            self.bound_history()
            block = self.copy_block()
            if (self.copy(primary, block) if block else self.speculate(primary, width)) == "leave":
                return

    def primary(self) -> int:
        if self.pending is not None:
            token, self.pending = self.pending, None
            return token
        token, _ = sample(self.at[0], self.cfg, self.draws, self.counts())
        self.toks.append(token)
        self.wire.emit(self.toks)
        return token

    def bound_history(self) -> None:
        if self.committed and 0 < self.reset_at <= self.appended:
            self.m.history.clear()
            self.n["resets"] += 1
            self.appended = 0

    def commit_rows(self, hiddens: list[Hidden], tokens: list[int]) -> None:
        if self.committed:
            self.appended += len(tokens)
            self.m.append(hiddens, tokens)

    # ---- context copy -----------------------------------------------------------
    def copy_block(self) -> list[int]:
        if not self.copying or self.index is None or len(self.toks) < self.policy.suspend:
            return []
        self.n["probes"] += 1
        found = self.index.find(self.prompt + self.toks)
        if found is None:
            return []
        position, extension = found
        return self.prompt[position : position + self.policy.size(extension)][: max(1, self.limit - len(self.toks))]

    def judge_block(self, outs: list[Output], block: list[int]) -> tuple[int, int | None]:
        """How many are accepted, and the correction."""
        for i, want in enumerate(block):
            if self.greedy:
                if int(np.argmax(outs[i][0])) != want:
                    return i, None
                continue
            p = shape(outs[i][0], self.cfg)
            if self.draws.u() > p.p(want):
                return i, self.draws.pick(residual(p, point(want)))
        return len(block), None

    def copy(self, primary: int, block: list[int]) -> str:
        base = len(self.m.tokens)
        outs = self.m.forward([primary, *block])
        self.n["verify"] += 1
        kept, fix = self.judge_block(outs, block)
        for i in range(kept):
            if block[i] in self.stops:
                kept, fix = i + 1, None
                break
        if self.capture_lane:
            self.m.log.append(["commit_window", kept + 1, len(block) + 1])
            self.m.keep(base + kept + 1)
        elif kept < len(block):  # this lane cannot commit part of a block
            self.m.keep(base)
            self.at = self.m.forward([primary])[0]
            self.copying = False
            return "stay"
        taken = block[:kept]
        self.toks.extend(taken)
        leave = bool(taken) and taken[-1] in self.stops
        self.origin = "context_copy" if leave else None
        if fix is not None:
            self.toks.append(fix)
            self.n["corrections"] += 1
            self.pending = fix
            if fix in self.stops:
                leave, self.origin = True, "residual_correction"
        self.n += Counter(copy_rounds=1, copy_drafted=len(block), copy_accepted=kept, copy_blocks=int(kept > 0))
        self.policy.note(kept / len(block), len(self.toks))
        self.commit_rows([self.at[1]] + [o[1] for o in outs[:kept]], [primary, *taken])
        self.at = outs[kept]
        self.wire.emit(self.toks)
        return "leave" if leave else "stay"

    # ---- draft, verify, accept, commit ------------------------------------------
    def draft(self, primary: int, width: int, history: list[tuple[int, int, int, int]]) -> tuple[list[int], list[Dist]]:
        tokens, qs = [], []
        feed, token = self.at[1], primary
        for d in range(width):
            row, feed = self.m.draft(feed, token, d + 1, history)
            if self.draft_cfg["temperature"] > 0:
                token, q = sample(row, self.draft_cfg, self.draws)
            else:
                token, q = int(np.argmax(row)), None
            tokens.append(token)
            qs.append(point(token) if q is None else q)
            self.n["drafted"] += 1
            self.drafted[d] += 1
        return tokens, qs

    def judge(self, outs: list[Output], drafts: list[int], qs: list[Dist]) -> tuple[int, int | None]:
        law = None
        if self.block_law:
            law = BlockLaw(drafts, [shape(o[0], self.cfg) for o in outs[: len(drafts)]], qs)
        for d, want in enumerate(drafts):
            row, counts, fix = outs[d][0], self.counts(drafts[:d]), None
            if self.greedy:
                ok = int(np.argmax(penalised(row, "float32", self.cfg, counts))) == want
            else:
                p = shape(row, self.cfg, counts)
                ok = self.draws.u() <= (law.coins[d] if law else accept_p(p, qs[d], want))
                fix = None if ok else self.draws.pick(law.residual(d) if law else residual(p, qs[d]))
            if not ok:
                self.n["rejected"] += 1
                return d, fix
            self.accepted[d] += 1
            if want in self.stops:
                return d + 1, None
        return len(drafts), None

    def speculate(self, primary: int, width: int) -> str:
        history = self.m.history if self.committed else []
        mark, base = len(history), len(self.m.tokens)
        drafts, qs = self.draft(primary, width, history)
        outs = self.m.forward([primary, *drafts])
        self.n["verify"] += 1
        kept, fix = self.judge(outs, drafts, qs)
        self.n["accepted"] += kept
        del history[mark + 1 :]  # the primary's row stays
        if kept == len(drafts):
            return self.all_accepted(outs, drafts)
        return self.repaired(primary, outs, drafts[:kept], len(drafts), fix, base)

    def all_accepted(self, outs: list[Output], drafts: list[int]) -> str:
        self.toks.extend(drafts)
        self.commit_rows([o[1] for o in outs[: len(drafts)]], drafts)
        self.at = outs[-1]
        self.wire.emit(self.toks)
        if drafts[-1] in self.stops:
            self.origin = "accepted_draft"
            return "leave"
        if len(self.toks) >= self.limit or self.env.get("MTPLX_OMIT_SPECULATIVE_BONUS") == "1":
            return "stay"
        bonus, _ = sample(self.at[0], self.cfg, self.draws, self.counts())
        self.toks.append(bonus)
        self.pending = bonus
        self.n["bonus"] += 1
        self.wire.emit(self.toks)
        if bonus in self.stops:
            self.origin = "bonus"
            return "leave"
        return "stay"

    def repaired(
        self, primary: int, outs: list[Output], taken: list[int], width: int, fix: int | None, base: int
    ) -> str:
        extra = [] if fix is None else [fix]
        self.n["corrections"] += len(extra)
        self.toks.extend(taken + extra)
        window = [primary, *taken]
        if self.capture_lane:
            self.m.log.append(["commit_window", len(window), width + 1])
            self.m.keep(base + len(window))
            self.pending = fix
            self.n["deferred"] += len(extra)
            self.at = outs[len(taken)]
            self.commit_rows([o[1] for o in outs[: len(taken)]], taken)
        else:
            self.m.keep(base)
            redo = self.m.forward(window + extra)
            self.at = redo[-1]
            self.commit_rows([o[1] for o in redo[:-1]], (window + extra)[1:])
        self.wire.emit(self.toks)
        last = (taken + extra)[-1] if taken or extra else None
        if last in self.stops:
            self.origin = "residual_correction" if extra else "accepted_draft"
            return "leave"
        return "stay"

    # ---- leaving ----------------------------------------------------------------
    def outcome(self) -> Record:
        if self.capture and self.pending is not None and self.toks and not self.hit:
            try:
                if self.committed:
                    self.m.append([self.at[1]], [self.pending])
                self.m.forward([self.pending])
                self.pending = None
            except ForwardFailed:
                pass  # the response stands, the state is not safe
        stopped = self.hit or any(t in self.stops for t in self.toks)
        finish = "stop" if stopped else "length"
        final = None
        if self.capture:
            final = {
                "trunk_tokens": list(self.m.tokens),
                "history": self.m.history_rows() if self.committed else None,
                "safe_to_commit": self.pending is None and not self.hit,
                "generated_token_ids": list(self.toks), "finish_reason": finish,
                "policy": self.spec.get("history", "committed"),
            }  # fmt: skip
        self.n["suspensions"] = self.policy.suspensions
        return {
            "finish_reason": finish, "final": final, "draw_trace": self.draws.trace, "counters": self.n,
            "origin": None if not stopped else "repetition_stop" if self.hit else self.origin,
            "accepted_by_depth": self.accepted, "drafted_by_depth": self.drafted,
            "suspended": len(self.toks) < self.policy.suspend, "backoff": self.policy.backoff if self.index else 0,
        }  # fmt: skip


def decode(spec: Record) -> Record:
    return (ArRun if spec["kind"] == "ar" else MtpRun)(spec).replay()
