"""The generator is NumPy's default_rng, word for word."""

import _qwenmtp_testing as core
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwenmtp.errors import InvalidRequest


@given(st.integers(min_value=0, max_value=2**300))
def test_seeding_and_doubles_equal_numpy(seed: int) -> None:
    draws, ref = core.Draws(seed), np.random.default_rng(seed)
    state = ref.bit_generator.state["state"]
    assert (draws.state, draws.inc) == (state["state"], state["inc"])
    for _ in range(4):
        assert draws.uniform() == ref.random()
        draws.accept(0.5)
        # NumPy and we have both taken one double.
        assert draws.state == ref.bit_generator.state["state"]["state"]


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="negative seed"):
        core.Draws(-1)


def test_worked_states_of_the_reference_document() -> None:
    assert core.Draws(42).state == 0xCEA44F6798798F2AACBC7C9D68860AC8
    assert core.Draws(0).inc == 0x418DDADB3AF71A82588133BC447873A9


masses = st.lists(st.floats(min_value=1e-12, max_value=1.0), min_size=1, max_size=24)


@given(masses, st.integers(min_value=0, max_value=2**64))
def test_a_token_draw_is_numpys_choice_and_takes_one_double(weights: list[float], seed: int) -> None:
    p = np.array(weights) / np.sum(weights)
    ids = np.arange(len(p)) * 7 + 3
    draws, ref = core.Draws(seed), np.random.default_rng(seed)
    assert draws.token(core.Distribution(ids.tolist(), p.tolist())) == int(ref.choice(ids, p=p))
    assert draws.state == ref.bit_generator.state["state"]["state"]


@given(st.lists(st.floats(min_value=-1e6, max_value=1e6), max_size=700))
def test_sums_round_as_numpys(values: list[float]) -> None:
    assert core.numpy_sum(values) == np.sum(np.array(values))


def test_a_dense_draw_never_picks_a_token_without_mass() -> None:
    dense = core.Distribution([], [0.0, 0.5, 0.0, 0.5, 0.0])
    picked = {core.Draws(seed).token(dense) for seed in range(200)}
    assert picked == {1, 3}
