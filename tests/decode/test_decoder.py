"""The request: pulling, cancelling, deadlines, failures, the final commit. Over the scripted trunk."""

import threading
from collections.abc import Callable
from typing import Any

import _qwenmtp_testing as core
import numpy as np
import pytest

from qwenmtp.errors import Cancelled, InvalidRequest, QwenMtpError

PROMPT = [3, 1, 4, 1, 5]
SAMPLED = (0.8, 0.95, 20, 0.0, 0.0)
GREEDY = (0.0, 0.95, 20, 0.0, 0.0)
BASE = {"target": SAMPLED, "seed": 5, "max_tokens": 24, "context_copy": False}

Scripted = Callable[..., Any]


def answer(decoder: Any) -> list[int]:
    out: list[int] = []
    while not decoder.done:
        out += decoder.advance()["ids"]
    return out


def all_options() -> list[dict[str, Any]]:
    lanes = [{**BASE, "lane": lane, "depth": d} for lane in ("capture_commit", "reforward") for d in (1, 3)]
    return [{**BASE, "speculate": False}, {**BASE, "speculate": False, "async": True}, *lanes]


OPTIONS = all_options()
IDS = ["ar", "ar-async", "capture-1", "capture-3", "reforward-1", "reforward-3"]


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_rounds_are_the_batches_joined(scripted: Scripted, options: dict[str, Any]) -> None:
    batches = core.ScriptedDecoder(scripted(amp=0.25), options, PROMPT)
    rounds = core.ScriptedDecoder(scripted(amp=0.25), options, PROMPT)
    joined: list[int] = []
    drafted = accepted = steps = 0
    while not rounds.done:
        step = rounds.step()
        joined += step["ids"]
        drafted, accepted, steps = drafted + step["drafted"], accepted + step["accepted"], steps + 1
    assert joined == answer(batches) == batches.tokens
    stats = rounds.statistics
    assert (drafted, accepted) == (stats["drafted_tokens"], stats["accepted_drafts"])
    assert steps <= stats["rounds"] + 1


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_a_cancelled_request_leaves_the_network_and_retries_alike(scripted: Scripted, options: dict[str, Any]) -> None:
    want = answer(core.ScriptedDecoder(scripted(amp=0.25), options, PROMPT))
    for pulled in range(6):
        net = scripted(amp=0.25)
        decoder = core.ScriptedDecoder(net, options, PROMPT)
        for _ in range(pulled):
            decoder.advance()
        decoder.cancel()
        assert decoder.advance()["ids"] == []
        assert (decoder.done, decoder.finish_reason) == (True, "cancelled")
        assert (net.tokens, net.history) == ([], [])
        with pytest.raises(QwenMtpError, match=r"decoder\.finish"):
            decoder.finish()
        assert answer(core.ScriptedDecoder(net, options, PROMPT)) == want


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_a_failing_forward_leaves_the_network_and_retries_alike(scripted: Scripted, options: dict[str, Any]) -> None:
    whole = scripted(amp=0.25)
    want = answer(core.ScriptedDecoder(whole, options, PROMPT))
    for calls in (i for i, call in enumerate(whole.log) if call[0] == "trunk"):
        net = scripted(amp=0.25)
        net.fail_after(calls)
        decoder = core.ScriptedDecoder(net, options, PROMPT)
        with pytest.raises(RuntimeError, match="scripted forward failure"):
            answer(decoder)
        assert decoder.done
        assert (net.tokens, net.history) == ([], [])
        net.fail_after(-1)
        assert answer(core.ScriptedDecoder(net, options, PROMPT)) == want


def test_cancelling_from_another_thread_ends_a_running_request(scripted: Scripted) -> None:
    net = scripted()
    decoder = core.ScriptedDecoder(net, {**BASE, "max_tokens": 100_000_000}, PROMPT)
    decoder.prefill()
    threading.Timer(0.05, decoder.cancel).start()
    decoder.drain()
    assert decoder.finish_reason == "cancelled"
    assert net.tokens == []


def test_a_passed_deadline_ends_the_request(scripted: Scripted) -> None:
    net = scripted()
    decoder = core.ScriptedDecoder(net, {**BASE, "deadline": 0.0}, PROMPT)
    assert answer(decoder) == []
    assert decoder.finish_reason == "deadline"
    assert net.tokens == []


def test_cancelling_the_final_commit_is_an_error(scripted: Scripted) -> None:
    net = scripted()
    decoder = core.ScriptedDecoder(net, {**BASE, "max_tokens": 1}, PROMPT)
    answer(decoder)
    decoder.cancel()
    with pytest.raises(Cancelled):
        decoder.finish()
    assert (net.tokens, net.history) == ([], [])


def test_a_failing_final_commit_keeps_the_answer_and_can_be_put_back(scripted: Scripted) -> None:
    net = scripted()
    decoder = core.ScriptedDecoder(net, {**BASE, "max_tokens": 1}, PROMPT)
    ids = answer(decoder)
    net.fail_after(0)
    final = decoder.finish()
    assert (final["present"], final["safe"], final["pending"]) == (True, False, ids[-1])
    assert "scripted forward failure" in final["error"]
    assert len(net.tokens) == len(PROMPT)
    assert len(net.history) == len(PROMPT)
    decoder.abandon()
    assert (net.tokens, net.history) == ([], [])


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
@pytest.mark.parametrize("limit", [1, 2, 5, 9])
def test_a_finished_request_holds_every_emitted_token(scripted: Scripted, options: dict[str, Any], limit: int) -> None:
    net = scripted(amp=0.25)
    decoder = core.ScriptedDecoder(net, {**options, "max_tokens": limit}, PROMPT)
    ids = answer(decoder)
    final = decoder.finish()
    assert final["safe"]
    assert net.tokens == PROMPT + ids
    assert final["logits_are_row_after_trunk"]
    if options.get("speculate", True):
        assert net.history == [[i + 1, 0, t] for i, t in enumerate((PROMPT + ids)[1:])]
        assert final["hidden_is_row_after_trunk"]
    with pytest.raises(QwenMtpError, match="finished"):
        decoder.finish()


def test_a_second_turn_continues_the_first(scripted: Scripted) -> None:
    net = scripted(amp=0.25)
    first = core.ScriptedDecoder(net, {**BASE, "max_tokens": 7}, PROMPT)
    ids = answer(first)
    first.finish()
    for suffix in ([], [9], [9, 2, 7]):
        context = PROMPT + ids + suffix
        cold = answer(core.ScriptedDecoder(scripted(amp=0.25), BASE, context))
        again = core.ScriptedDecoder(net, BASE, context, first)
        assert answer(again) == cold
        assert again.statistics["cached_tokens"] == len(PROMPT + ids)
        again.abandon()
        assert net.tokens == PROMPT + ids


@pytest.mark.parametrize("chunk", [0, 1, 2, 3, 4, 5, 100])
def test_every_chunk_size_prefills_the_same(scripted: Scripted, chunk: int) -> None:
    net = scripted(amp=0.25)
    decoder = core.ScriptedDecoder(net, {**BASE, "prefill_chunk": chunk}, list(range(12)))
    held = []
    while not decoder.prefilled:
        held.append(decoder.prefill())
    assert held[-1] == 12
    assert held == sorted(set(held))
    assert net.history == [[i, 0, i] for i in range(1, 12)]
    assert answer(decoder) == answer(core.ScriptedDecoder(scripted(amp=0.25), BASE, list(range(12))))


def test_stop_tokens_end_the_answer_and_are_never_released(scripted: Scripted) -> None:
    free = answer(core.ScriptedDecoder(scripted(amp=0.25), BASE, PROMPT))
    for stop in set(free):
        decoder = core.ScriptedDecoder(scripted(amp=0.25), {**BASE, "stops": [stop]}, PROMPT)
        ids = answer(decoder)
        assert stop not in ids
        if decoder.finish_reason == "stop":
            assert decoder.tokens == [*ids, stop]
            assert decoder.stop_origin != "unknown"


def test_log_probabilities_belong_to_the_row_that_made_each_token(scripted: Scripted) -> None:
    for options in OPTIONS:
        net = scripted(amp=0.25, vocab=16)
        decoder = core.ScriptedDecoder(net, {**options, "logprobs": 2}, PROMPT)
        ids, entries = [], []
        while not decoder.done:
            step = decoder.step()
            ids += step["ids"]
            entries += step["logprobs"]
        assert len(entries) == len(ids)
        # Teacher forcing, token by token, over the plain hash row of each prefix.
        salt = core.ScriptedConfig().salt
        for i, (token, (value, top)) in enumerate(zip(ids, entries, strict=True)):
            h = salt
            for t in PROMPT + ids[:i]:
                h = core.fold(h, t)
            row = np.array([(core.noise(h, j) - 32768) / 8192 for j in range(16)])
            want = row - np.log(np.exp(row).sum())
            assert abs(value - want[token]) < 1e-5  # float32
            assert [t for t, _ in top] == np.argsort(-want)[:2].tolist()


def test_tested_depths_divide_the_acceptance_means_exactly(scripted: Scripted) -> None:
    decoder = core.ScriptedDecoder(scripted(amp=2.0), {**BASE, "max_tokens": 300, "depth": 3}, PROMPT)
    answer(decoder)
    stats = decoder.statistics
    drafted, tested, accepted = (stats[f"{n}_by_depth"][:3] for n in ("drafted", "tested", "accepted"))
    assert tested[0] == drafted[0]
    # Depth d + 1 is tested where depth d was accepted and there was a draft for it.
    assert all(tested[d + 1] <= accepted[d] for d in range(2))
    assert tested[2] < drafted[2]
    assert sum(tested) == stats["accepted_drafts"] + stats["rejected_drafts"]
    for mass, n in zip(stats["accept_probability_sum_by_depth"], tested, strict=False):
        assert 0 < mass <= n


def test_bad_requests_are_refused_before_any_work(scripted: Scripted) -> None:
    net = scripted()
    for options, prompt, message in (
        ({**BASE, "depth": 0}, PROMPT, "depth 0"),
        ({**BASE, "depth": 6}, PROMPT, "depth 6"),
        ({**BASE, "max_tokens": -1}, PROMPT, "max_tokens -1"),
        ({**BASE, "lane": "other"}, PROMPT, "lane 'other'"),
        ({**BASE, "sede": 1}, PROMPT, "unknown option 'sede'"),
        ({**BASE, "seed": -1}, PROMPT, "negative seed"),
        (BASE, [], "empty prompt"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            core.ScriptedDecoder(net, options, prompt)
    assert net.log == []


def test_a_prefix_without_its_last_row_is_refused(scripted: Scripted) -> None:
    net = scripted()
    first = core.ScriptedDecoder(net, {**BASE, "max_tokens": 0}, PROMPT)
    first.drain()
    with pytest.raises(InvalidRequest, match="without its last row"):
        core.ScriptedDecoder(net, BASE, [*PROMPT, 7])
    with pytest.raises(InvalidRequest, match="prefix of 5"):
        core.ScriptedDecoder(net, BASE, PROMPT[:3])


def test_greedy_answers_do_not_depend_on_drafts(scripted: Scripted) -> None:
    options = {**BASE, "target": GREEDY}
    want = answer(core.ScriptedDecoder(scripted(amp=0.25), {**options, "speculate": False}, PROMPT))
    for lane in ("capture_commit", "reforward"):
        for depth in range(1, 6):
            for extra in ({}, {"auto_depth": True}, {"context_copy": True}, {"history_reset_rows": 4}):
                decoder = core.ScriptedDecoder(
                    scripted(amp=0.25), {**options, "lane": lane, "depth": depth, **extra}, PROMPT
                )
                assert answer(decoder) == want


@pytest.mark.parametrize("mode", ["hash", "ties"])
@pytest.mark.parametrize(
    "target", [SAMPLED, GREEDY, (1.0, 1.0, 2, 0.0, 0.0), (1.0, 0.9, 0, 0.0, 0.0), (0.8, 0.95, 4, 0.5, 0.2)]
)
def test_candidates_from_the_device_give_the_same_answers(
    scripted: Scripted, target: tuple[float, ...], mode: str
) -> None:
    # 512 logits: the candidates are a small part of the row, and "ties" declines them.
    for options in ({**OPTIONS[0]}, {**BASE, "depth": 3}, {**BASE, "context_copy": True}):
        answers = [
            answer(
                core.ScriptedDecoder(
                    scripted(amp=0.25, mode=mode, vocab=512),
                    {**options, "target": target, "device_candidates": on_device},
                    PROMPT,
                )
            )
            for on_device in (False, True)
        ]
        assert answers[0] == answers[1]


@pytest.mark.parametrize("max_tokens", [1, 2, 9, 40, 41, 100])
def test_rounds_without_drafts_leave_the_history_of_rounds_with_them(scripted: Scripted, max_tokens: int) -> None:
    """No draft is ever right, so the automatic depth stops drafting; its history rows are appended later."""
    script = [7] * 200
    histories, appends = [], []
    for extra in ({"auto_depth": True, "depth": 3}, {"depth": 1}):
        net = scripted(mode="script", script=script, draft_script=[9] * 200)
        decoder = core.ScriptedDecoder(net, {**BASE, "target": GREEDY, "max_tokens": max_tokens, **extra}, PROMPT)
        assert answer(decoder) == script[:max_tokens]
        assert decoder.finish()["safe"]
        histories.append(net.history)
        appends.append(sum(call[0] in ("history", "draft") for call in net.log))
    assert histories[0] == histories[1]
    assert len(histories[0]) == len(PROMPT) + max_tokens - 1
    if max_tokens == 100:
        assert appends[0] < 20 < 99 <= appends[1]
