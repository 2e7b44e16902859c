"""The repetition stop against an exhaustive reading of decode.md section 7."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import _qwenmtp_testing as core
import numpy as np
import pytest

ORACLE = Path(__file__).resolve().parents[2] / "tools" / "oracle" / "decode"
SMALL = {
    "MIN_TOKENS": 40,
    "MIN_REPEATED_TOKENS": 12,
    "MIN_REPEATS": 3,
    "MAX_BLOCK_TOKENS": 6,
    "MIN_CYCLE_SPAN_TOKENS": 60,
}
Hit = tuple[str, int, int, int]


@pytest.fixture(scope="module")
def machine() -> ModuleType:
    sys.path.insert(0, str(ORACLE))
    try:
        import machine
    finally:
        sys.path.remove(str(ORACLE))
    return machine


def pair(machine: ModuleType, gates: dict[str, int]) -> tuple[Any, Any]:
    ours = {f"repetition_{name.lower()}": value for name, value in gates.items()}
    env = {f"MTPLX_REPETITION_STOP_{name}": str(value) for name, value in gates.items()}
    return core.Repetition({**ours, "repetition_stop": True}), machine.Repetition(True, env)


def follow(machine: ModuleType, gates: dict[str, int], stream: list[int], step: int) -> Hit | None:
    """Both detectors over a growing answer, `step` tokens a round; the hit they agree on."""
    ours, oracle = pair(machine, gates)
    for end in range(step, len(stream) + 1, step):
        tokens = stream[:end]
        assert ours.releasable(tokens) == oracle.limit(tokens)
        want = oracle.check(list(tokens))
        assert ours.check(tokens) == want
        if want:
            return want
    return None


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("period", [1, 2, 5, 6, 7, 20, 33, 50])
def test_a_loop_after_noise_stops_where_the_oracle_says(machine: ModuleType, period: int, step: int) -> None:
    rng = np.random.default_rng(period)
    noise = rng.integers(0, 1000, 30).tolist()
    stream = noise + rng.permutation(1000)[:period].tolist() * (400 // period)
    hit = follow(machine, SMALL, stream, step)
    assert hit is not None
    assert hit[0] == ("exact_repeated_token_suffix" if period <= 6 else "long_cycle")
    assert hit[1] % period == 0


def test_text_without_a_loop_never_stops(machine: ModuleType) -> None:
    rng = np.random.default_rng(1)
    assert follow(machine, SMALL, rng.integers(0, 50, 400).tolist(), 1) is None


def test_a_broken_loop_is_none(machine: ModuleType) -> None:
    block = list(range(40))
    stream = [*block, *block, 99, *block, *block, 98, *block, *block]
    assert follow(machine, SMALL, stream, 1) is None


def test_defaults_hold_back_a_window_only_while_a_loop_forms() -> None:
    repetition = core.Repetition({"repetition_stop": True})
    noise = np.random.default_rng(2).permutation(5000)[:1000].tolist()
    assert repetition.releasable(noise) == 1000
    assert repetition.releasable(noise + [7] * 200) == 1200 - 448
    strict = core.Repetition({"repetition_stop": True, "repetition_holdback": "strict"})
    assert strict.releasable(noise) == 1000 - 448
    assert strict.releasable(noise[:320]) == 320
    off = core.Repetition({"repetition_stop": True, "repetition_holdback": "off"})
    assert off.releasable(noise + [7] * 200) == 1200


def test_a_disarmed_stop_sees_nothing() -> None:
    repetition = core.Repetition({})
    assert repetition.check([7] * 2000) is None
    assert repetition.releasable([7] * 2000) == 2000
