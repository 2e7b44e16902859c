"""Boundaries of a state of a real small model: where they are taken, what rewinding gives, what a request costs."""

from pathlib import Path
from typing import Any

import _qwenmtp_testing as core
import pytest

from qwenmtp import _core
from qwenmtp.weights import open_model_files

SMALL = Path(__file__).resolve().parents[1] / "golden" / "model" / "small"
MODES = ["ar", "mtp"]
IDS = [(7 * i * i + 3 * i) % 61 + 1 for i in range(300)]


@pytest.fixture(scope="module")
def model() -> Any:
    m = open_model_files(SMALL)
    return _core.Model(m.geometry, m.layout, m.files, m.tensors, m.quant, True)


def begin(model: Any, state: Any, ids: list[int], **options: Any) -> Any:
    greedy = (0.0, 1.0, 1, 0.0, 0.0)
    return _core.Decoder(
        model, state, ids, {"target": greedy, "speculate": state.speculates, "context_copy": False, **options}
    )


def run(model: Any, state: Any, ids: list[int], **options: Any) -> list[int]:
    decoder = begin(model, state, ids, **options)
    while not decoder.done:
        decoder.step()
    assert decoder.finish() == ""
    return list(decoder.tokens)


def cold(model: Any, mode: str, ids: list[int], **options: Any) -> Any:
    state = _core.State(model, mode == "mtp")
    run(model, state, ids, **options)
    return state


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk", [7, 64, 2048])
def test_a_boundary_in_the_middle_of_a_prompt_is_the_state_of_a_run_that_stopped_there(
    model: Any, mode: str, chunk: int
) -> None:
    lengths = [1, 20, 64, 65, 99]
    state = cold(model, mode, IDS[:100], max_tokens=5, boundaries=lengths, prefill_chunk=chunk)
    assert state.boundaries == lengths
    for length in reversed(lengths):
        state.rewind(length)
        state.check()
        assert state.ids == IDS[:length]
        # the ids behind the boundary are other ones than those that made it
        ids = [*IDS[:length], 5, *IDS[200:230]]
        warm, want = state.fork(), cold(model, mode, IDS[:length], max_tokens=0)
        assert run(model, warm, ids, max_tokens=6) == run(model, want, ids, max_tokens=6)
        assert warm.first_difference(want) is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("diverges", [-1, 0, 1])
def test_the_last_token_of_a_boundary_is_not_forwarded_twice(model: Any, mode: str, diverges: int) -> None:
    """The reference does, where an AR prompt leaves the stored one exactly at a boundary (sessions.md 1.6)."""
    at = 40
    state = cold(model, mode, IDS[:60], max_tokens=4, boundaries=[20, at])
    ids = [*IDS[: at + diverges], 63, 62, 61]
    back = max(b for b in state.boundaries if b <= at + diverges)
    assert back == (20 if diverges < 0 else at)
    state.rewind(back)
    decoder = begin(model, state, ids, max_tokens=3, boundaries=[back])
    assert state.boundaries == [b for b in (20, at) if b <= back]  # known already, not recorded again
    assert decoder.statistics["cached_tokens"] == back
    while not decoder.done:
        decoder.step()
    assert decoder.finish() == ""
    assert len(state) == len(ids) + 3
    want = cold(model, mode, ids, max_tokens=3)
    assert state.ids == want.ids
    assert state.first_difference(want) is None


@pytest.mark.parametrize("mode", MODES)
def test_the_restored_prefix_becomes_a_boundary_and_a_cancelled_turn_takes_it_away(model: Any, mode: str) -> None:
    state = cold(model, mode, IDS[:30], max_tokens=4, boundaries=[29])
    before, held = state.fork(), len(state)
    options = {"max_tokens": 30, "boundaries": [held, held + 5], "fused_suffix": 0}
    decoder = begin(model, state, state.ids + IDS[50:70], **options)
    decoder.prefill()
    assert state.boundaries == [29, held, held + 5]
    decoder.cancel()
    decoder.advance()
    assert state.boundaries == [29]
    assert state.first_difference(before) is None
    run(model, state, before.ids + IDS[50:70], **options)
    assert state.boundaries == [29, held, held + 5]
    state.rewind(held)
    assert state.ids == before.ids


def test_a_cancelled_turn_gives_back_a_history_that_started_anew_meanwhile(model: Any) -> None:
    state = cold(model, "mtp", IDS[:30], max_tokens=4)
    before = state.fork()
    decoder = begin(model, state, [*state.ids, 5], max_tokens=60, history="cycle")
    while len(decoder.tokens) < 9:
        decoder.step()
    assert state.history_len < before.history_len
    decoder.cancel()
    decoder.advance()
    assert state.first_difference(before) is None


@pytest.mark.parametrize("mode", MODES)
def test_a_short_suffix_is_one_forward_without_boundaries(model: Any, mode: str) -> None:
    state = cold(model, mode, IDS[:30], max_tokens=4)
    decoder = begin(model, state, state.ids + IDS[50:70], max_tokens=0, boundaries=[40])
    assert decoder.prefill() == 54
    assert decoder.prefilled
    assert state.boundaries == []


def test_forgotten_boundaries_and_bytes(model: Any) -> None:
    state = cold(model, "mtp", IDS[:60], max_tokens=4, boundaries=[10, 20, 30])
    whole = state.n_bytes
    state.keep_boundaries([20, 99])
    assert state.boundaries == [20]
    none = state.fork()
    none.keep_boundaries([])
    assert state.boundaries == [20]
    record = {"gdn_conv", "gdn_ssm", "ple_conv", "hidden"}
    n_bytes = sum(len(data) for name, _, _, data in state.tensors() if name.split(".")[-1] in record)
    assert state.n_bytes - none.n_bytes == n_bytes
    assert whole - state.n_bytes == 2 * n_bytes


def test_a_request_copies_no_key_or_value_slab(model: Any) -> None:
    """A snapshot that held the slabs made every turn copy them once."""

    def slabs(state: Any) -> list[int]:
        return [at for i, at in enumerate(core.slab_addresses(state)) if i % 4 < 2]

    state = cold(model, "ar", IDS[:30], max_tokens=4)
    before = slabs(state)
    assert len(before) == 4
    run(model, state, state.ids + IDS[50:70], max_tokens=6)
    assert slabs(state) == before
    other = state.fork()
    run(model, state, [*state.ids, 1], max_tokens=1)
    assert not set(slabs(state)) & set(before)
    assert slabs(other) == before
