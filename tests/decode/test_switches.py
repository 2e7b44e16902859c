"""Switches of decoding on the real model: what they change, and what no switch may change."""

from pathlib import Path

import numpy as np
import pytest

import qwenmtp
from qwenmtp import SamplingParams
from qwenmtp.engine import null_decoder

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
TEXT = "import os\n\n\ndef main(argv):\n    parser = argparse.ArgumentParser()\n" * 2
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def demo():
    with qwenmtp.load(DEMO, dtype="float32") as model:
        yield model


def turn(session, prompt, params=GREEDY, n=24):
    list(session.generate(prompt, params, max_tokens=n, ignore_stop=True))
    state = session._timeline.whole()
    state.check()
    return session.last_turn.ids


POLICIES = {
    "cycle": {"mtp_history_policy": "cycle"},
    "window of 16": {"mtp_history_policy": "last_window", "mtp_history_window": 16},
    "window of 1": {"mtp_history_policy": "last_window", "mtp_history_window": 1},
    "auto": {"mtp_history_policy": "auto", "mtp_history_window": 16},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_history_policy_moves_drafts_and_never_the_answer(demo, policy):
    """Two turns, so that the second starts from what the policy left of the first."""
    plain, other = demo.session(context_copy=False), demo.session(context_copy=False, **POLICIES[policy])
    assert turn(other, TEXT) == turn(plain, TEXT)
    longer = plain.ids + demo.tokenizer.encode("\n\nclass Reader:\n")
    assert turn(other, longer) == turn(plain, longer)
    drafted = [s.last_turn.stats["drafted_tokens"] > 0 for s in (plain, other)]
    assert drafted == [True, True]


@pytest.mark.parametrize("chunk", [1, 7, 20, 2048])
@pytest.mark.parametrize("window", [1, 16, 10_000])
def test_a_window_keeps_the_last_rows_of_a_prompt_in_any_chunks(demo, chunk, window):
    prompt = demo.tokenizer.encode(TEXT)
    kept = {"mtp_history_policy": "last_window", "mtp_history_window": window}
    one = demo.session(prefill_chunk=chunk, **kept)
    turn(one, prompt, n=0)
    assert one.state()["history"] == min(window, len(prompt) - 1)
    whole = demo.session(**({} if window >= len(prompt) else kept))
    turn(whole, prompt, n=0)
    if chunk in (1, 2048):  # equal splits of the trunk give equal bits
        other = demo.session(prefill_chunk=chunk, **({} if window >= len(prompt) else kept))
        turn(other, prompt, n=0)
        assert one.first_difference(other) is None


def test_a_long_suffix_drops_the_rows_before_it_and_a_short_one_keeps_them(demo):
    kept = {"mtp_history_policy": "last_window", "mtp_history_window": 16, "prefill_fused_suffix_max": 0}
    prompt = demo.tokenizer.encode(TEXT * 2)
    short, long = demo.session(**kept), demo.session(**kept)
    for session in (short, long):
        turn(session, prompt[:40], n=0)
        assert session.state()["history"] == 16
    turn(short, prompt[:45], n=0)
    assert short.state()["history"] == 16 + 5
    turn(long, prompt[:60], n=0)
    assert long.state()["history"] == 16


def test_a_cycle_leaves_no_history(demo):
    session = demo.session(mtp_history_policy="cycle")
    turn(session, TEXT)
    assert session.state()["history"] == 0


def test_auto_is_committed_below_its_prompt_length(demo):
    auto, plain = demo.session(**POLICIES["auto"]), demo.session()
    turn(auto, TEXT)
    turn(plain, TEXT)
    assert auto.first_difference(plain) is None


def test_block_verification_is_opt_in_and_draws_other_tokens_of_the_same_law(demo):
    """The law itself is the fixtures' affair (tests/decode/test_replay.py); here it is reachable and reproducible."""

    def ids(**switches):
        params = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, seed=11)
        return turn(demo.session(depth=5, context_copy=False, **switches), TEXT, params, n=80)

    block = ids(verify_block=True)
    assert block == ids(verify_block=True)
    assert block != ids()
    assert turn(demo.session(verify_block=True), TEXT) == turn(demo.session(), TEXT)  # greedy has one answer


def test_relaxed_ties_change_the_drafts_reader_alone():
    """A row of ties past 4 * top_k without a nucleus is the one case: q leaves p in its last bits."""
    rows = np.zeros((4, 100), np.float32)
    rows[:, ::3] = -1.0
    rows[:, 10] = 1.3

    def accepted(relaxed):
        sampler = (0.6, 1.0, 3, 0.0, 0.0)
        switches = {"target": sampler, "draft": sampler, "seed": 1, "max_tokens": 40, "depth": 3, "context_copy": False}
        decoder = null_decoder(rows, [1, 2, 3], switches | {"relaxed_draft_ties": relaxed})
        decoder.prefill()
        while not decoder.done:
            decoder.step()
        return decoder.statistics["accept_probability_sum_by_depth"][:3], decoder.statistics["tested_by_depth"][:3]

    exact, tested = accepted(False)
    assert exact == tested
    relaxed, tested = accepted(True)
    assert relaxed != tested
    np.testing.assert_allclose(relaxed, tested, rtol=1e-7)  # float32 mass of a tie
