"""How often a round waits for the device, which chooses drafts itself; and that the host corrects it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import _qwenmtp_testing as core
import numpy as np
import pytest
from msl.harness import launcher
from msl.harness.spec import Value

from qwenmtp import _core

GREEDY, SAMPLED = (0.0, 0.95, 20, 0.0, 0.0), (0.6, 0.95, 20, 0.0, 0.0)
PROMPT = [699, 579, 207, 12, 40]


def waits(demo: Any, target: tuple[float, ...], **options: Any) -> list[int]:
    """Of each round behind the first step, which reads the prompt's row; rows are read as on an accelerator."""
    state = _core.State(demo, options.get("speculate", True))
    request = {"seed": 3, "target": target, "max_tokens": 48, "device_candidates": True, **options}
    decoder = _core.Decoder(demo, state, PROMPT, request)
    decoder.step()
    found = []
    while not decoder.done:
        before = decoder.statistics
        decoder.step()
        syncs, rounds = (decoder.statistics[name] - before[name] for name in ("syncs", "rounds"))
        if rounds:
            assert syncs % rounds == 0
            found.append(syncs // rounds)
    assert len(found) > 5
    return found


@pytest.mark.parametrize("target", [GREEDY, SAMPLED])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_token_of_plain_decoding_waits_once(demo: Any, target: tuple[float, ...], is_async: bool) -> None:
    counts = set(waits(demo, target, speculate=False, **{"async": is_async}))
    assert counts <= {0, 1} if is_async else counts == {1}  # a row that is there already needs no wait


@pytest.mark.parametrize("target", [GREEDY, SAMPLED])
@pytest.mark.parametrize("options", [{"depth": 1}, {"depth": 3}, {"depth": 3, "draft": (1.3, 1.0, 4, 0.0, 0.0)}])
def test_a_round_waits_twice(demo: Any, target: tuple[float, ...], options: dict[str, Any]) -> None:
    """For all its drafts together, and for their verification."""
    assert set(waits(demo, target, **options)) == {2}


def test_drafts_that_only_the_host_can_choose_are_waited_for_one_by_one(demo: Any) -> None:
    assert set(waits(demo, SAMPLED, depth=3, draft=(0.6, 0.95, 0, 0.0, 0.0))) == {4}


class Picks:
    """An accelerator that runs the kernels' text; every `wrong`-th token that it draws is another one."""

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong
        self.n = self.n_wrong = 0

    def __call__(self, name: str, template: Sequence[tuple[str, Value]], inputs: Sequence[Any]) -> list[Any]:
        out = launcher.run(name, template, inputs)
        if name == "sample_pick":
            self.n += 1
            if self.wrong and self.n % self.wrong == 0:
                self.n_wrong += 1
                return [np.array([(out[0][0] + 1) % 32], np.int32)]
        return out


@pytest.fixture
def accelerator() -> Iterator[Callable[[int], Picks]]:
    def make(wrong: int) -> Picks:
        picks = Picks(wrong)
        core.text_backend(picks)
        return picks

    yield make
    core.text_backend(None)


@pytest.mark.parametrize("lane", ["capture_commit", "reforward"])
@pytest.mark.parametrize("history", ["committed", "cycle"])
@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_a_pick_that_the_host_does_not_share_costs_a_wait_and_nothing_else(
    scripted: Callable[..., Any], accelerator: Callable[[int], Picks], lane: str, history: str, wrong: int
) -> None:
    options = {"target": SAMPLED, "seed": 5, "max_tokens": 24, "context_copy": False, "depth": 4}
    options |= {"lane": lane, "history": history}

    def answer(on_device: bool) -> tuple[Any, ...]:
        net = scripted(amp=0.25)
        decoder = core.ScriptedDecoder(net, {**options, "device_candidates": on_device}, [3, 1, 4, 1, 5])
        decoder.drain()
        decoder.finish()
        kept = decoder.trace, decoder.generator_state, decoder.statistics["accepted_drafts"]
        return decoder.tokens, net.tokens, net.history, *kept

    want = answer(False)
    picks = accelerator(wrong)
    assert answer(True) == want
    assert picks.n > 10
    assert picks.n_wrong == (picks.n // wrong if wrong else 0)
