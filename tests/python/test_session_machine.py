"""Sessions under arbitrary operations: the state of each is always, byte for byte, a cold run of its ids.

On the CPU back end a row does not depend on the width of its forward, so the replay may choose its own widths.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import qwenmtp
from qwenmtp import Model, SamplingParams, Session

SMALL = Path(__file__).resolve().parents[1] / "golden" / "model" / "small"
IDS = st.lists(st.integers(1, 5), min_size=1, max_size=6)
SAMPLED = {"temperature": 1.0, "top_k": 5}

replays: dict[tuple[str, tuple[int, ...]], dict[str, str]] = {}


def digests(session: Session) -> dict[str, str]:
    return {name: tensor.sha256 for name, tensor in session.export().items()}


def replay(model: Model, mode: Any, ids: list[int]) -> dict[str, str]:
    """The state of a run that finds nothing and draws nothing."""
    key = (mode, tuple(ids))
    if key not in replays:
        cold = model.session(mode=mode)
        list(cold.generate(ids, SamplingParams(temperature=0), max_tokens=0))
        assert cold.last_turn is not None
        assert cold.last_turn.reuse["restored"] == 0
        replays[key] = digests(cold)
    return replays[key]


class Sessions(RuleBasedStateMachine):
    """Two names in two modes, small budgets, boundaries everywhere."""

    folder: str
    model: Model

    @initialize(entries=st.integers(1, 5), boundaries=st.integers(0, 4), named=st.booleans())
    def begin(self, entries: int, boundaries: int, named: bool) -> None:
        self.folder = tempfile.mkdtemp()
        self.model = qwenmtp.load(
            SMALL,
            dtype="float32",
            checkpoint_dir=self.folder,
            checkpoint_min_tokens=1,
            checkpoint_floor_bytes=0,
            session_max_entries=entries,
            session_pin_s=0,
            session_boundary_max=boundaries,
            session_boundary_tail_interval=4,
            session_boundary_tail_backoff=2,
            session_boundary_tail_rung=5,
            session_store_min_suffix=3,
            session_near_min=1,
            session_block_min=1,
            prefill_chunk=8,
            prefill_fused_suffix_max=3,
        )
        self.known: list[list[int]] = [[1, 2, 3]]
        self.sessions = {
            (name, mode): self.model.session(name if named else None, mode, 2)
            for name in "ab"
            for mode in ("ar", "mtp")
        }
        self.saved: list[tuple[Path, Any, list[int]]] = []

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.close()
            shutil.rmtree(self.folder)

    def pick(self, data: st.DataObject) -> Session:
        return self.sessions[data.draw(st.sampled_from(sorted(self.sessions)))]

    def prompt(self, data: st.DataObject, session: Session) -> list[int]:
        """Extends the session, or any timeline that ever was, or leaves it somewhere."""
        base = data.draw(st.sampled_from([session.ids, *self.known]))
        cut = data.draw(st.integers(0, len(base)))
        return [*base[: data.draw(st.sampled_from([cut, len(base)]))], *data.draw(IDS)][-60:]

    @rule(data=st.data(), seed=st.integers(0, 3), n=st.integers(0, 7))
    def generate(self, data: st.DataObject, seed: int, n: int) -> None:
        session = self.pick(data)
        prompt = self.prompt(data, session)
        for _ in session.generate(prompt, SamplingParams(seed=seed, **SAMPLED), max_tokens=n):
            pass
        turn = session.last_turn
        assert turn is not None
        assert turn.final["committed"]
        assert session.ids == [*prompt, *turn.ids]
        self.known = [*self.known[-5:], session.ids]

    @rule(data=st.data(), pulled=st.integers(0, 2))
    def cancel(self, data: st.DataObject, pulled: int) -> None:
        session = self.pick(data)
        before = session.ids
        rounds = session.generate(self.prompt(data, session), SamplingParams(seed=1, **SAMPLED), max_tokens=30)
        for _ in range(pulled):
            next(rounds)
        if pulled and data.draw(st.booleans()):
            session.cancel()
            list(rounds)
        else:
            rounds.close()
        assert session.ids == before

    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        session = self.pick(data)
        if session.ids:
            path = Path(self.folder) / f"saved-{len(self.saved)}"
            session.save(path)
            self.saved.append((path, session.mode, session.ids))
            if session.id is not None:
                session.save()

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        path, mode, ids = data.draw(st.sampled_from(self.saved))
        session = self.model.restore(path, depth=2)
        assert (session.mode, session.ids) == (mode, ids)
        self.sessions["a", mode] = session

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        session = self.pick(data)
        if session.id is not None:
            before = session.ids
            found = session.resume()
            assert found or session.ids == before

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        session = self.pick(data)
        self.sessions["b", session.mode] = session.fork(data.draw(st.sampled_from(["b", None])))

    @rule()
    def evict(self) -> None:
        self.model.bank.clear()

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        self.pick(data).reset()

    @rule(data=st.data(), at=st.integers(0, 10_000), kind=st.sampled_from(["flip", "cut", "old", "foreign"]))
    def corrupt(self, data: st.DataObject, at: int, kind: str) -> None:
        files = sorted(Path(self.folder).rglob("*.qwmtkv"))
        if files:
            path = data.draw(st.sampled_from(files))
            content = bytearray(path.read_bytes())
            if kind == "flip":
                content[at * 7919 % len(content)] ^= 1
            elif kind == "cut":
                del content[at * 7919 % len(content) :]
            else:
                content[:8] = b"QWMTKV01" if kind == "old" else b"DS4RKV01"
            path.write_bytes(content)

    @invariant()
    def every_state_is_a_cold_replay(self) -> None:
        for session in getattr(self, "sessions", {}).values():
            if session.ids:
                assert digests(session) == replay(self.model, session.mode, session.ids)


def check(examples: int, steps: int, **options: Any) -> None:
    options |= {"deadline": None, "suppress_health_check": list(HealthCheck)}
    chosen = settings(max_examples=examples, stateful_step_count=steps, **options)
    run_state_machine_as_test(Sessions, settings=chosen)


def test_every_state_is_a_cold_replay_of_its_ids() -> None:
    check(20, 20, derandomize=True, phases=[Phase.generate])


@pytest.mark.slow
def test_every_state_is_a_cold_replay_of_its_ids_at_length() -> None:
    check(300, 40)
