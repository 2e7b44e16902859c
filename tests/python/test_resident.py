"""Sessions that share a model: prefixes in memory, boundaries, leases, the store behind named ones, restored files.

The file is over 400 lines: all of it is one comparison, with a cold run of the same ids, over the ways of reuse."""

import gc
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qwenmtp
from qwenmtp import CheckpointError, InvalidRequest, Model, SamplingParams, Session, Turn
from qwenmtp.checkpoint_files import ls

SMALL = Path(__file__).resolve().parents[1] / "golden" / "model" / "small"
MODES: list[Any] = ["ar", "mtp"]
GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=0.8, seed=11)
COLD = {"restored": 0, "mode": "none", "source": "none"}


def text(n: int, seed: int = 3) -> list[int]:
    return [(7 * i * i + seed * i) % 61 + 1 for i in range(n)]


def answer(session: Session, ids: list[int], n: int = 6, params: SamplingParams = GREEDY, **options: Any) -> Turn:
    for _ in session.generate(ids, params, max_tokens=n, ignore_stop=True, **options):
        pass
    assert session.last_turn is not None
    return session.last_turn


def open_small(tmp_path: Path, **settings: Any) -> Model:
    return qwenmtp.load(SMALL, dtype="float32", checkpoint_dir=str(tmp_path / "store"), **settings)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    with open_small(tmp_path) as opened:
        yield opened


def reuse(turn: Turn) -> tuple[int, str, str]:
    return turn.reuse["restored"], turn.reuse["mode"], turn.reuse["source"]


def assert_cold_equal(model: Model, session: Session, turn: Turn, prompt: list[int], params: SamplingParams) -> None:
    """Ids, acceptance and every byte of the state are those of a run that found nothing."""
    cold = model.session(mode=session.mode, depth=session.depth)
    other = answer(cold, prompt, len(turn.ids), params)
    assert other.reuse["source"] == "none"
    assert other.ids == turn.ids
    for counter in ("drafted_tokens", "accepted_drafts", "correction_tokens", "bonus_tokens"):
        assert other.stats[counter] == turn.stats[counter]
    assert session.first_difference(cold) is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_prompts_that_share_a_prefix_alternate_between_sessions(model: Model, mode: Any, params: Any) -> None:
    base = text(40)
    a, b = model.session("a", mode), model.session("b", mode)
    prompts = {"a": [*base, *text(9, 5)], "b": [*base, *text(7, 4)]}
    kinds = []
    for name in "abababa":
        session = a if name == "a" else b
        turn = answer(session, prompts[name], 5, params)
        assert_cold_equal(model, session, turn, prompts[name], params)
        kinds.append(reuse(turn))
        prompts[name] = [*session.ids, *text(3, 9)]
    assert kinds[0] == (0, "none", "none")
    assert kinds[2] == (54, "exact", "live")
    assert all(k[1:] == ("exact", "live") for k in kinds[2:])


@pytest.mark.parametrize("mode", MODES)
def test_a_named_session_takes_a_copy_of_anothers_prefix(model: Model, mode: Any) -> None:
    first, second = model.session("a", mode), model.session("b", mode)
    answer(first, text(40), 4)
    before = first.fork()
    turn = answer(second, [*first.ids, 5, 6], 5)
    assert reuse(turn) == (44, "exact", "bank")
    assert_cold_equal(model, second, turn, second.ids[:46], GREEDY)
    assert first.first_difference(before) is None
    assert reuse(answer(first, [*first.ids, 9], 3)) == (44, "exact", "live")
    nameless = model.session(mode=mode)
    assert answer(nameless, [*first.ids, 5], 2).reuse == {**COLD, "miss": "new_session"}
    assert answer(model.session("c", mode, cache_scope="tools"), [*first.ids, 5], 2).reuse["restored"] == 0
    assert answer(model.session("d", "ar" if mode == "mtp" else "mtp"), [*first.ids, 5], 2).reuse["restored"] == 0


@pytest.mark.parametrize("id", ["a", None])
def test_a_turn_moves_its_own_entry_on_and_remembers_where_it_began(model: Model, id: str | None) -> None:
    session = model.session(id)
    answer(session, text(20), 3)
    (entry,) = model.bank.entries()
    begun = []
    for _ in range(6):
        begun.append(len(session.ids))
        answer(session, [*session.ids, 4], 2)
        assert model.bank.entries() == [entry]
        assert entry.boundaries[-1] == begun[-1]
        assert (entry.users, entry.leased) == (0, False)
    assert len(entry.boundaries) == 4
    rounds = session.generate([*session.ids, 4], GREEDY, max_tokens=30, ignore_stop=True)
    next(rounds)
    assert entry.leased
    rounds.close()
    assert (entry.users, entry.leased) == (0, False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("diverges", [-1, 0, 1])
def test_an_edited_prompt_is_read_from_the_last_boundary_before_the_edit(
    model: Model, mode: Any, diverges: int
) -> None:
    session = model.session(mode=mode, session_block_prefix=True, session_block_min=8, session_near_prefix=False)
    prompt = text(400)
    answer(session, prompt, 4)
    assert session.state()["boundaries"] == [335, 399]
    edited = [*prompt[: 335 + diverges], 63, 62, 61]
    turn = answer(session, edited, 5)
    assert reuse(turn) == ((335, "boundary", "live") if diverges >= 0 else (0, "none", "none"))
    assert turn.reuse["miss"] == (None if diverges >= 0 else "prefix_divergence")
    assert_cold_equal(model, session, turn, edited, GREEDY)
    again = answer(session, [*prompt, 5], 3)  # what was left behind is still there
    assert reuse(again) == (399, "boundary", "live")
    assert_cold_equal(model, session, again, [*prompt, 5], GREEDY)


def test_a_shorter_part_of_the_timeline_is_not_restored_past_the_prompt(model: Model) -> None:
    session = model.session(session_block_min=8)
    prompt = text(400)
    answer(session, prompt, 4)
    same = answer(session, prompt, 4)
    assert reuse(same) == (399, "boundary", "live")
    assert_cold_equal(model, session, same, prompt, GREEDY)
    assert reuse(answer(session, prompt[:335], 2)) == (0, "none", "none")
    assert reuse(answer(session, prompt[:336], 2)) == (335, "boundary", "live")


@pytest.mark.parametrize(
    "settings", [{"session_block_prefix": False}, {"session_block_min": 401}, {"session_boundary_max": 0}]
)
def test_what_the_settings_switch_off_is_not_restored(model: Model, settings: dict[str, Any]) -> None:
    session = model.session(session_near_prefix=False, **({"session_block_min": 8} | settings))
    answer(session, text(400), 4)
    assert reuse(answer(session, [*text(400), 5], 2))[0] == 0


def test_near_prefixes(model: Model) -> None:
    session = model.session(session_block_prefix=False)
    answer(session, text(400), 4)
    assert reuse(answer(session, [*session.ids[:-8], 60], 2)) == (335, "boundary", "live")
    other = model.session(session_block_prefix=False, session_near_prefix=False)
    answer(other, text(400), 4)
    assert reuse(answer(other, [*other.ids[:-8], 60], 2))[0] == 0


def test_cancelling_an_edited_turn_leaves_the_timeline(model: Model) -> None:
    session = model.session(session_block_min=8)
    answer(session, text(400), 4)
    before = session.fork()
    edited = [*text(400)[:340], 60, 61]
    for _ in session.generate(edited, GREEDY, max_tokens=400):
        session.cancel()
    assert session.last_turn is not None
    assert session.last_turn.final == {"committed": False, "reason": "cancelled"}
    assert session.ids == before.ids
    assert session.first_difference(before) is None
    assert reuse(answer(session, [*session.ids, 3], 2)) == (404, "exact", "live")


def test_a_long_prompt_survives_an_answer_that_is_not_kept(model: Model) -> None:
    session = model.session(session_store_min_suffix=100, session_block_min=8)
    prompt = text(300)
    rounds = session.generate(prompt, GREEDY, max_tokens=40)
    next(rounds)
    rounds.close()
    assert session.ids == []
    retry = answer(session, prompt, 5)
    assert reuse(retry) == (299, "exact", "live")
    assert_cold_equal(model, session, retry, prompt, GREEDY)
    assert len(model.bank.entries()) == 1  # the answer covers what was kept of its prompt
    for off in ({"session_store_on_prefill": False}, {"session_store_min_suffix": 301}):
        other = model.session(**({"session_store_min_suffix": 100} | off))
        rounds = other.generate(prompt, GREEDY, max_tokens=40)
        next(rounds)
        rounds.close()
        assert reuse(answer(other, prompt, 2))[0] == 0


@pytest.mark.parametrize("mode", MODES)
def test_an_evicted_timeline_is_computed_again(tmp_path: Path, mode: Any) -> None:
    with open_small(tmp_path, session_max_entries=1, session_pin_s=0) as model:
        first, second = model.session("a", mode), model.session("b", mode)
        answer(first, text(40), 4)
        kept = first.export()
        answer(second, text(30, 5), 4)
        assert [e.session for e in model.bank.entries()] == ["b"]
        assert first.ids[:40] == text(40)
        assert {k: t.sha256 for k, t in first.export().items()} == {k: t.sha256 for k, t in kept.items()}
        assert [e.session for e in model.bank.entries()] == ["a"]
        turn = answer(second, [*second.ids, 4], 3)
        assert turn.reuse == {**COLD, "miss": "evicted"}
        assert_cold_equal(model, second, turn, second.ids[:35], GREEDY)


def test_nameless_sessions_leave_nothing_behind(model: Model) -> None:
    session = model.session()
    answer(session, text(20), 2)
    answer(model.session("a"), text(21, 5), 2)
    assert len(model.bank) == 2
    del session
    gc.collect()
    assert [e.session for e in model.bank.entries()] == ["a"]
    named = model.session("a")
    assert named.ids == []
    assert reuse(answer(named, [*text(21, 5), *answer(model.session(), text(21, 5), 2).ids, 7], 1)) == (
        23,
        "exact",
        "live",
    )
    named.reset()
    assert (len(model.bank), named.ids, named.state()["tokens"]) == (0, [], 0)


def test_states_of_one_model_are_not_installed_into_another(model: Model, tmp_path: Path) -> None:
    answer(model.session("a"), text(20), 2)
    (entry,) = model.bank.entries()
    identity = model.session("a").identity
    with qwenmtp.load(SMALL.parent / "odd", dtype="float32") as other:
        with pytest.raises(CheckpointError) as caught:
            other.bank.put(entry.state, identity, "a")
        assert caught.value.outcome == "incompatible"
        assert len(other.bank) == 0
    model.close()
    assert len(model.bank) == 0
    assert entry.state is None


def test_every_setting_that_touches_state_is_in_the_identity(model: Model) -> None:
    def digest(**options: Any) -> bytes:
        return model.session(**options).identity.digest()

    base = digest()
    assert digest(context_copy=False, prefill_chunk=7) == base
    others = [digest(depth=2), digest(depth="auto"), digest(mode="ar"), digest(cache_scope="x")]
    others += [digest(verify_capture_commit=False), digest(mtp_history_policy="cycle")]
    assert len({base, *others}) == 7
    assert digest(mode="ar", depth=2) == digest(mode="ar")
    assert digest(depth=2, session_share_across_depth=True) == digest(depth=3, session_share_across_depth=True) != base
    with qwenmtp.load(SMALL, dtype="bfloat16") as half:
        assert half.session().identity.digest() != base
    assert digest() == base


@pytest.mark.parametrize("mode", MODES)
def test_a_saved_file_continues_the_same_stream(model: Model, tmp_path: Path, mode: Any) -> None:
    session = model.session(mode=mode, depth=2)
    answer(session, text(300), 7, SAMPLED)
    path = tmp_path / "chat.qwmtkv"
    report = session.save(path)
    assert report.n_bytes == path.stat().st_size
    if mode == "mtp":
        with pytest.raises(CheckpointError) as caught:
            model.restore(path)
        assert caught.value.outcome == "incompatible"
    with pytest.raises(CheckpointError) as caught:
        model.restore(path, depth=2, cache_scope="other")
    assert caught.value.outcome == "incompatible"
    with open_small(tmp_path) as other:
        restored = other.restore(path, depth=2)
        assert (restored.mode, restored.id, restored.ids) == (mode, None, session.ids)
        assert restored.state() | {"bytes": 0, "boundaries": 0} == session.state() | {"bytes": 0, "boundaries": 0}
        assert restored.state()["boundaries"] == [235]
        exported = {k: t.sha256 for k, t in restored.export().items()}
        assert exported == {k: t.sha256 for k, t in session.export().items()}
        prompt = [*session.ids, 4, 5]
        here, there = answer(session, prompt, 20, SAMPLED), answer(restored, prompt, 20, SAMPLED)
        assert there.ids == here.ids
        assert {k: v for k, v in there.stats.items() if k != "ple"} == {
            k: v for k, v in here.stats.items() if k != "ple"
        }
        assert reuse(there) == (307, "exact", "store")
        exported = {k: t.sha256 for k, t in restored.export().items()}
        assert exported == {k: t.sha256 for k, t in session.export().items()}
        assert reuse(answer(restored, [*restored.ids, 1], 1)) == (329, "exact", "live")
    assert path.exists()


def test_restore_refuses_and_leaves_the_file(model: Model, tmp_path: Path) -> None:
    session = model.session()
    answer(session, text(20), 2)
    path = tmp_path / "a"
    session.save(path)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-20000] ^= 1
    for data, outcome in (
        (b"QWMTKV01" + good[8:], "old_version"),
        (b"DS4RKV01" + good[8:], "foreign"),
        (bytes(flipped), "corrupt"),
        (good[:100], "corrupt"),
    ):
        path.write_bytes(data)
        with pytest.raises(CheckpointError) as caught:
            model.restore(path)
        assert caught.value.outcome == outcome
        assert path.read_bytes() == data
    path.write_bytes(good)
    link = tmp_path / "link"
    link.symlink_to(path)
    for bad, outcome in ((link, "unsafe_path"), (tmp_path / "none", "busy"), (tmp_path / "no" / "ne", "busy")):
        with pytest.raises(CheckpointError) as caught:
            model.restore(bad)
        assert caught.value.outcome == outcome
    with pytest.raises(CheckpointError) as caught:
        session.save(tmp_path / "no" / "ne")
    assert caught.value.outcome == "busy"
    with pytest.raises(InvalidRequest, match="empty"):
        model.session("x").save()
    with pytest.raises(InvalidRequest, match="without a name"):
        session.save()
    with pytest.raises(InvalidRequest, match="without a name"):
        session.resume()
    assert model.restore(path).first_difference(session) is None


@pytest.mark.parametrize("mode", MODES)
def test_a_name_is_taken_up_by_the_next_model(tmp_path: Path, mode: Any) -> None:
    with open_small(tmp_path) as model:
        session = model.session("chat", mode)
        assert not session.resume()
        answer(session, text(40), 6, SAMPLED)
        session.save()
        want = answer(session, [*session.ids, 8, 9], 12, SAMPLED)
        whole = {k: t.sha256 for k, t in session.export().items()}
    with open_small(tmp_path) as model:
        session = model.session("chat", mode)
        assert session.resume()
        turn = answer(session, [*session.ids, 8, 9], 12, SAMPLED)
        assert turn.ids == want.ids
        assert reuse(turn) == (46, "exact", "store")
        assert {k: t.sha256 for k, t in session.export().items()} == whole
        other = model.session("other", mode)
        assert reuse(answer(other, [*text(40), *answer(model.session(mode=mode), text(40), 6, SAMPLED).ids, 2], 1))[
            :2
        ] == (
            46,
            "exact",
        )


@pytest.mark.parametrize("mode", MODES)
def test_a_stored_timeline_is_read_from_its_boundary(tmp_path: Path, mode: Any) -> None:
    prompt = text(600)
    with open_small(tmp_path) as model:
        session = model.session("chat", mode)
        answer(session, prompt, 4)
        session.save()
    (info,) = ls(tmp_path / "store")
    assert info.boundaries == (535,)
    with open_small(tmp_path) as model:
        session = model.session("chat", mode)
        edited = [*prompt[:570], 60, 61]
        turn = answer(session, edited, 5)
        assert reuse(turn) == (535, "boundary", "store")
        assert_cold_equal(model, session, turn, edited, GREEDY)
        assert reuse(answer(model.session("chat", mode), [*prompt[:530], 60], 1))[0] == 0
        strict = model.session("x", mode, session_block_min=571, session_near_prefix=False)
        assert reuse(answer(strict, [*prompt[:570], 59], 1))[0] == 0


def test_memory_comes_before_a_file_that_saves_no_more(model: Model) -> None:
    first = model.session("a")
    answer(first, text(40), 4)
    first.save()
    assert reuse(answer(model.session("b"), [*first.ids, 5], 1)) == (44, "exact", "bank")
    ids = first.ids
    model.bank.clear()
    assert reuse(answer(model.session("c"), [*ids, 5], 1)) == (44, "exact", "store")


@pytest.mark.parametrize(
    ("make", "code", "outcome"),
    [
        (lambda root: root.write_text(""), "checkpoint_unsafe_path", "unsafe_path"),
        (lambda root: root.symlink_to(root.parent), "checkpoint_unsafe_path", "unsafe_path"),
        (lambda root: (root.parent / "deep").write_text(""), "checkpoint_unavailable", "busy"),
    ],
    ids=["file", "link", "below a file"],
)
def test_a_store_that_cannot_be_opened_never_fails_an_answer(
    tmp_path: Path, make: Any, code: str, outcome: str
) -> None:
    make(tmp_path / "store")
    folder = tmp_path / ("deep/store" if outcome == "busy" else "store")
    with qwenmtp.load(SMALL, dtype="float32", checkpoint_dir=str(folder), checkpoint_min_tokens=1) as model:
        session = model.session("chat")
        turn = answer(session, text(20), 3)
        assert (turn.reuse["miss"], turn.final["committed"]) == (code, True)
        with pytest.raises(CheckpointError) as caught:
            session.save()
        assert caught.value.outcome == outcome
        archive = model._archive
    assert [type(e) for e in archive.failures] == [CheckpointError]


ROTTEN = {
    "checkpoint_version": lambda good: b"QWMTKV01" + good[8:],
    "checkpoint_corrupt": lambda good: good[:-1],
    "checkpoint_foreign": lambda good: b"DS4RKV01" + good[8:],
    "checkpoint_incompatible": lambda good: good[:64] + bytes(32) + good[96:],
}


@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("code", ROTTEN)
def test_a_bad_file_ends_in_a_cold_answer(tmp_path: Path, code: str, resumes: bool) -> None:
    with open_small(tmp_path) as model:
        session = model.session("chat")
        answer(session, text(40), 4)
        session.save()
        ids = session.ids
        want = answer(session, [*ids, 3], 5)
        (path,) = (tmp_path / "store").rglob("*.qwmtkv")
    path.write_bytes(ROTTEN[code](path.read_bytes()))
    path.chmod(0o600)
    stat = path.stat()
    with open_small(tmp_path) as model:
        session = model.session("chat")
        if resumes:
            assert not session.resume()
            assert session.ids == []
        turn = answer(session, [*ids, 3], 5)
        assert turn.reuse == {**COLD, "miss": code}
        assert turn.ids == want.ids
        if code == "checkpoint_foreign":
            assert (path.stat().st_ino, path.stat().st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
        else:
            assert not path.exists()
        session.save()
        assert path.read_bytes()[:8] == b"QWMTKV02"
        assert answer(session, [*session.ids, 3], 1).reuse["miss"] is None


def test_a_rested_session_is_written_and_found_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwenmtp.archive.IDLE_S", 0.05)
    with open_small(tmp_path, checkpoint_min_tokens=40, checkpoint_floor_bytes=0) as model:
        session = model.session("chat")
        answer(session, text(30), 4)  # too short
        answer(session, text(50), 4)
        answer(model.session(), text(60), 4)  # nameless
        deadline = time.monotonic() + 20
        while not ls(tmp_path / "store") and time.monotonic() < deadline:
            time.sleep(0.02)
        (info,) = ls(tmp_path / "store")
        assert (info.n_tokens, info.mode) == (54, "mtp")
        assert json.loads(json.dumps(info.meta))["identity"]["depth"] == 3
    with open_small(tmp_path) as model:
        turn = answer(model.session("other"), [*text(50), *session.ids[50:], 7], 3)
        assert reuse(turn) == (54, "exact", "store")


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    with open_small(tmp_path, checkpoint_min_tokens=1, checkpoint_floor_bytes=0) as model:
        answer(model.session("chat"), text(30), 4)
        assert ls(tmp_path / "store") == []
    assert [i.n_tokens for i in ls(tmp_path / "store")] == [34]


def test_a_session_that_grew_a_lot_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    with open_small(tmp_path, checkpoint_min_tokens=10) as model:
        monkeypatch.setattr(model._archive._writer, "put", lambda key, job, delay: delays.append(delay))
        session = model.session("chat")
        answer(session, text(30), 4)
        monkeypatch.setattr("qwenmtp.archive.NEW_TOKENS", 36)
        answer(session, [*session.ids, 5], 1)
        session.save()
        answer(session, [*session.ids, 5], 1)
    assert delays == [2.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ({"checkpoint_mode": "off"}, 0),
        ({"checkpoint_min_tokens": 35}, 0),
        ({"checkpoint_floor_bytes": 1 << 60}, 0),
        ({"checkpoint_hourly_bytes": 1000}, 0),
        ({"checkpoint_max_bytes": 1000}, 0),
        ({"checkpoint_mode": "write-only"}, 1),
        ({"checkpoint_durability": "none"}, 1),
    ],
    ids=lambda v: "",
)
def test_every_limit_of_automatic_saves(tmp_path: Path, settings: dict[str, Any], files: int) -> None:
    defaults: dict[str, Any] = {"checkpoint_min_tokens": 1, "checkpoint_floor_bytes": 0}
    with open_small(tmp_path, **(defaults | settings)) as model:
        answer(model.session("chat"), text(30), 4)
        if settings.get("checkpoint_mode") == "off":
            assert model.store is None
            session = model.session("chat")
            answer(session, text(30), 1)
            with pytest.raises(InvalidRequest, match="checkpoints are off"):
                session.save()
    assert len(ls(tmp_path / "store")) == files
    if settings.get("checkpoint_mode") == "write-only":
        with open_small(tmp_path, **(defaults | settings)) as model:
            session = model.session("chat")
            assert not session.resume()
            assert answer(session, [*text(30), 1], 1).reuse == {**COLD, "miss": "new_session"}


def test_a_busy_session_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwenmtp.archive.IDLE_S", 0.0)
    with open_small(tmp_path, checkpoint_min_tokens=1, checkpoint_floor_bytes=0) as model:
        session = model.session("chat")
        answer(session, text(30), 4)
        done = threading.Event()
        for _ in session.generate([*session.ids, 5], GREEDY, max_tokens=30, ignore_stop=True):
            assert session.state()["tokens"] == 34
        done.set()
        assert not model._archive.failures
    (info,) = ls(tmp_path / "store")
    assert info.n_tokens == 65
