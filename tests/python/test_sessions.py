"""Sessions on the demo pack: exact streams, warm turns, and every way an answer can end early."""

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import qwenmtp
from qwenmtp import ContextLengthExceeded, InvalidRequest, Model, SamplingParams, Session, SessionBusy

ROOT = Path(__file__).resolve().parents[2]
GREEDY = SamplingParams(temperature=0)
PROMPT = "def main(argv):\n"


def answer(session: Session, prompt: Any, params: SamplingParams = GREEDY, **options: Any) -> qwenmtp.Turn:
    pieces = [r.text for r in session.generate(prompt, params, **options)]
    assert session.last_turn is not None
    assert "".join(pieces) == session.last_turn.text
    return session.last_turn


def reference(name: str) -> list[dict[str, Any]]:
    return json.loads((ROOT / "tests" / "golden" / name).read_text())["prompts"]


SHARED = ROOT.parent / "shared" / "demo-model"


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/demo-model beside this checkout")
def test_greedy_streams_of_the_released_layout_equal_pytorch() -> None:
    cases = reference("demo_greedy.json")
    assert len(cases) >= 12
    with qwenmtp.load(SHARED, dtype="float32") as model:
        for case in cases:
            turn = answer(model.session(mode="ar"), case["ids"], max_tokens=64, ignore_stop=True)
            assert list(turn.ids) == case["greedy_ids"], case["name"]


@pytest.mark.parametrize("depth", [1, 3, 5, "auto"])
def test_drafting_does_not_change_a_greedy_answer(demo: Model, depth: Any) -> None:
    plain = answer(demo.session(mode="ar"), PROMPT, max_tokens=24)
    drafted = answer(demo.session(depth=depth), PROMPT, max_tokens=24)
    assert drafted.ids == plain.ids
    assert drafted.stats["drafted_tokens"] > 0


def test_one_seed_one_stream(demo: Model) -> None:
    params = SamplingParams(temperature=1.0, seed=2**70 + 3)
    first = answer(demo.session(), PROMPT, params, max_tokens=20)
    again = answer(demo.session(), PROMPT, params, max_tokens=20)
    other = answer(demo.session(), PROMPT, SamplingParams(temperature=1.0, seed=4), max_tokens=20)
    assert first.ids == again.ids
    assert first.ids != other.ids


@pytest.mark.parametrize("mode", ["ar", "mtp"])
def test_a_prompt_that_extends_the_live_state_is_not_read_again(demo: Model, mode: Any) -> None:
    session = demo.session(mode=mode)
    prompt = demo.tokenizer.encode(PROMPT)
    first = answer(session, prompt, max_tokens=9)
    assert first.final == {"committed": True, "reason": None}
    assert session.ids == [*prompt, *first.ids]
    longer = [*session.ids, *demo.tokenizer.encode("\n    return 0\n")]
    warm = answer(session, longer, max_tokens=12)
    cold = answer(demo.session(mode=mode), longer, max_tokens=12)
    assert warm.reuse["restored"] == len(prompt) + 9
    assert warm.usage["prefilled"] == len(longer) - len(prompt) - 9
    assert cold.reuse == {"restored": 0, "mode": "none", "source": "none", "miss": "new_session"}
    assert warm.ids == cold.ids


def test_a_prompt_that_leaves_the_live_state_is_read_from_the_start(demo: Model) -> None:
    session = demo.session()
    answer(session, PROMPT, max_tokens=5)
    turn = answer(session, "import os\n", max_tokens=5)
    assert turn.reuse["restored"] == 0
    assert turn.ids == answer(demo.session(), "import os\n", max_tokens=5).ids


def test_a_forked_session_goes_its_own_way(demo: Model) -> None:
    session = demo.session()
    answer(session, PROMPT, max_tokens=6)
    base = session.ids
    fork = session.fork()
    left = answer(session, [*base, 10], max_tokens=8)
    right = answer(fork, [*base, 20], max_tokens=8)
    assert right.reuse["restored"] == left.reuse["restored"] == len(base)
    assert left.ids == answer(demo.session(), [*base, 10], max_tokens=8).ids
    assert right.ids == answer(demo.session(), [*base, 20], max_tokens=8).ids


@pytest.mark.parametrize("mode", ["ar", "mtp"])
def test_cancelling_keeps_the_state_and_the_retry_equals_an_undisturbed_run(demo: Model, mode: Any) -> None:
    session = demo.session(mode=mode)
    answer(session, PROMPT, max_tokens=5)
    before = session.ids
    prompt = [*before, 31]
    for n, _ in enumerate(session.generate(prompt, GREEDY, max_tokens=40)):
        if n == 2:
            threading.Thread(target=session.cancel).start()
    assert session.last_turn is not None
    assert session.last_turn.finish == "cancelled"
    assert session.last_turn.final == {"committed": False, "reason": "cancelled"}
    assert session.ids == before
    retry = answer(session, prompt, max_tokens=10)
    assert retry.reuse["restored"] == len(before)
    assert retry.ids == answer(demo.session(mode=mode), prompt, max_tokens=10).ids


def test_a_consumer_that_stops_pulling_changes_nothing(demo: Model) -> None:
    session = demo.session()
    answer(session, PROMPT, max_tokens=5)
    before, turn = session.ids, session.last_turn
    rounds = session.generate([*before, 31], GREEDY, max_tokens=40)
    next(rounds)
    rounds.close()
    assert session.ids == before
    assert session.last_turn is turn
    assert answer(session, [*before, 31], max_tokens=6).reuse["restored"] == len(before)


def test_a_stop_string_ends_text_ids_and_state_before_it(demo: Model) -> None:
    whole = answer(demo.session(), PROMPT, max_tokens=40)
    stop = whole.text[12:16]
    session = demo.session()
    turn = answer(session, PROMPT, max_tokens=40, stop=[stop])
    assert turn.finish == "stop"
    assert turn.stop_origin == "stop_string"
    assert turn.text == whole.text[: whole.text.index(stop)]
    assert turn.usage["completion"] == len(turn.ids)
    assert turn.ids == whole.ids[: len(turn.ids)]
    assert stop not in demo.tokenizer.decode(turn.ids)
    assert turn.final == {"committed": False, "reason": "stop_string"}
    assert session.ids == []


def test_a_stop_token_ends_the_answer_and_is_no_text(demo: Model) -> None:
    prompt = demo.chat_template.render([{"role": "user", "content": "What does os.path.join do?"}])
    turn = answer(demo.session(), prompt, max_tokens=200)
    assert turn.finish == "stop"
    assert turn.ids[-1] in demo.tokenizer.stop_ids
    assert "<|im_end|>" not in turn.text
    longer = answer(demo.session(), prompt, max_tokens=len(turn.ids) + 5, ignore_stop=True)
    assert longer.ids[: len(turn.ids)] == turn.ids
    assert longer.finish == "length"


def test_the_limit_and_nothing_at_all(demo: Model) -> None:
    assert len(answer(demo.session(), PROMPT, max_tokens=7).ids) == 7
    empty = answer(demo.session(), PROMPT, max_tokens=0)
    assert (empty.ids, empty.text, empty.finish) == ((), "", "length")


def test_a_deadline_that_has_passed(demo: Model) -> None:
    session = demo.session()
    turn = answer(session, PROMPT, max_tokens=20, deadline=0.0)
    assert turn.finish == "deadline"
    assert turn.final == {"committed": False, "reason": "deadline"}
    assert session.ids == []


def test_log_probabilities_of_greedy_tokens_lead_their_rows(demo: Model) -> None:
    rounds = list(demo.session().generate(PROMPT, GREEDY, max_tokens=8, logprobs=3))
    for r in rounds:
        assert len(r.logprobs) == len(r.ids)
        for token, (value, top) in zip(r.ids, r.logprobs, strict=True):
            assert top[0] == (token, value)
            assert value <= 0
            assert len(top) == 3


def test_one_request_at_a_time(demo: Model) -> None:
    session = demo.session()
    rounds = session.generate(PROMPT, GREEDY, max_tokens=10)
    next(rounds)
    with pytest.raises(SessionBusy):
        next(session.generate(PROMPT, GREEDY, max_tokens=10))
    with pytest.raises(SessionBusy):
        session.reset()
    rounds.close()
    answer(session, PROMPT, max_tokens=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "empty"),
        ({"prompt": [4096]}, "4096"),
        ({"prompt": [-1]}, "-1"),
        ({"prompt": ["a"]}, "sequence of ints"),
        ({"prompt": "\ud800"}, "Unicode"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"logprobs": 129}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"deadline": float("nan")}, "deadline"),
        ({"stop": [""]}, "non-empty"),
    ],
    ids=lambda v: "",
)
def test_bad_requests_are_named_and_change_nothing(demo: Model, arguments: dict[str, Any], words: str) -> None:
    session = demo.session()
    with pytest.raises(InvalidRequest) as caught:
        session.generate(**{"prompt": PROMPT, "params": GREEDY, **arguments})
    assert words in str(caught.value)
    assert session.ids == []


def test_a_prompt_longer_than_the_context(demo: Model) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        demo.session().generate([1] * 32768, GREEDY)
    assert caught.value.details == {"prompt_tokens": 32768, "context": 32768}


@pytest.mark.parametrize(("mode", "depth"), [("both", 3), ("mtp", 0), ("mtp", 6), ("mtp", True), ("mtp", "deep")])
def test_modes_and_depths_that_do_not_exist(demo: Model, mode: Any, depth: Any) -> None:
    with pytest.raises(InvalidRequest):
        demo.session(mode=mode, depth=depth)


def test_a_closed_model_refuses_work() -> None:
    model = qwenmtp.load(ROOT / "tests" / "golden" / "model" / "small")
    session = model.session()
    model.close()
    model.close()
    with pytest.raises(InvalidRequest, match="closed"):
        next(session.generate([1, 2], GREEDY))


def test_a_model_without_head_serves_plain_decoding_only(tmp_path: Path) -> None:
    import shutil

    pack = Path(shutil.copytree(ROOT / "tests" / "golden" / "model" / "speed", tmp_path / "speed"))
    (pack / "mtp.safetensors").unlink()
    with qwenmtp.load(pack) as model:
        assert not model.has_mtp
        with pytest.raises(InvalidRequest, match="no MTP head"):
            model.session()
        assert len(answer_ids(model.session(mode="ar"))) == 4


def answer_ids(session: Session) -> tuple[int, ...]:
    for _ in session.generate([1, 2, 3], GREEDY, max_tokens=4, ignore_stop=True):
        pass
    assert session.last_turn is not None
    return session.last_turn.ids


def test_a_state_exports_every_tensor_with_its_hash(demo: Model) -> None:
    session = demo.session()
    answer(session, [699, 579, 207], max_tokens=5, ignore_stop=True)
    tensors = session.export()
    assert tensors["mtp.keys"].array.shape[1] == session.state()["history"] == 7
    assert tensors["trunk.3.keys"].array.shape[1] == 8
    assert tensors["trunk.1.ple_ids"].array.tolist() == session.ids[-2:]
    assert {t.dtype for t in tensors.values()} == {"float32", "int64"}
    for tensor in tensors.values():
        assert tensor.sha256 == hashlib.sha256(tensor.array.tobytes()).hexdigest()
    best = int(tensors["final.logits"].array.argmax())
    assert answer(session, session.ids, max_tokens=1, ignore_stop=True).ids == (best,)


def test_bfloat16_tensors_hold_the_same_values(demo: Model) -> None:
    with qwenmtp.load(demo.path, dtype="bfloat16") as model:
        session = model.session(mode="ar")
        answer(session, [699, 579, 207], max_tokens=1, ignore_stop=True)
        logits = session.export()["final.logits"]
    assert logits.dtype == "bfloat16"
    assert logits.array.dtype.name == "bfloat16"
    assert (
        int(logits.array.astype("float32").argmax())
        == answer(demo.session(mode="ar"), [699, 579, 207], max_tokens=2, ignore_stop=True).ids[-1]
    )
