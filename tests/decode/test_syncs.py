"""How often a round waits for the device."""

from typing import Any

import pytest

from qwenmtp import _core

GREEDY, SAMPLED = (0.0, 0.95, 20, 0.0, 0.0), (0.6, 0.95, 20, 0.0, 0.0)
PROMPT = [699, 579, 207, 12, 40]


def waits(demo: Any, target: tuple[float, ...], **options: Any) -> list[int]:
    """Of each round behind the first, whose primary comes from the prompt's row; rows are read as on an accelerator."""
    state = _core.State(demo, options.get("speculate", True))
    request = {"seed": 3, "target": target, "max_tokens": 48, "device_candidates": True, **options}
    decoder = _core.Decoder(demo, state, PROMPT, request)
    decoder.step()
    found = []
    while not decoder.done:
        before = decoder.statistics["syncs"]
        if decoder.step()["ids"]:
            found.append(decoder.statistics["syncs"] - before)
    assert len(found) > 5
    return found


@pytest.mark.parametrize("target", [GREEDY, SAMPLED])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_token_of_plain_decoding_waits_once(demo: Any, target: tuple[float, ...], is_async: bool) -> None:
    assert set(waits(demo, target, speculate=False, **{"async": is_async})) == {1}
