"""Old and foreign files behind a named session, and conversations that go on in another process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qwenmtp
from qwenmtp import Model, SamplingParams, Session, Turn, _core
from qwenmtp.cli import main

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "tests" / "golden" / "model" / "small"
SAMPLED = SamplingParams(temperature=0.6, top_p=0.95, top_k=20, seed=0)
PROMPT = [9, 11, 10]
# created, writer id, header digest: all that two files of one state may differ in
STAMPS = (slice(48, 56), slice(176, 192), slice(192, 224))


def open_small(store: Path) -> Model:
    return qwenmtp.load(SMALL, dtype="float32", checkpoint_dir=str(store))


def answer(session: Session, ids: list[int], n: int) -> Turn:
    for _ in session.generate(ids, SAMPLED, max_tokens=n, ignore_stop=True):
        pass
    assert session.last_turn is not None
    return session.last_turn


def file_of(store: Path) -> Path:
    (path,) = store.rglob("*.qwmtkv")
    return path


def unstamped(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    for stamp in STAMPS:
        data[stamp] = bytes(len(data[stamp]))
    return bytes(data)


def old_body(store: Path, mode: Any) -> bytes:
    """QWMTKV01 and the complete body of a save for 4 tokens whose trunk holds 3 of them and whose history 2."""
    with open_small(store) as model:
        session = model.session("chat", mode, 1)
        answer(session, PROMPT, 0)
        session.save()
        data = bytearray(file_of(store).read_bytes())
    assert data[128:152] == (3).to_bytes(8, "little") * 2 + (2 if mode == "mtp" else 0).to_bytes(8, "little")
    data[:8], data[128] = b"QWMTKV01", 4
    return bytes(data)


def by_another_process(path: Path, data: bytes) -> None:
    code = "import os, sys; os.umask(0o077); open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    subprocess.run([sys.executable, "-c", code, str(path)], input=data, check=True)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("mode", ["mtp", "ar"])
def test_an_old_file_ends_in_what_an_independent_cold_run_gives(tmp_path: Path, mode: Any, late: bool) -> None:
    """V01: refused before a tensor is allocated, removed, rebuilt; only stamps tell the files apart."""
    old = old_body(tmp_path / "store", mode)
    path = file_of(tmp_path / "store")
    if not late:
        by_another_process(path, old)
    with open_small(tmp_path / "store") as model:
        assert model.store is not None
        session = model.session("chat", mode, 1)
        if late:
            model.session("other", mode, 1).resume()  # the store is open
            path.unlink()
            by_another_process(path, old)
        asked = _core.checkpoint_allocated_bytes()
        assert not session.resume()
        first = answer(session, PROMPT, 1)
        assert _core.checkpoint_allocated_bytes() == asked
        assert first.reuse == {"restored": 0, "mode": "none", "source": "none", "miss": "checkpoint_version"}
        assert first.usage["cached"] == 0
        assert not path.exists()
        session.save()
        second = answer(session, [*session.ids, 1], 6)
        recovered = session.export()
    with open_small(tmp_path / "elsewhere") as model:
        cold = model.session("chat", mode, 1)
        assert answer(cold, PROMPT, 1).ids == first.ids
        cold.save()
        assert answer(cold, [*cold.ids, 1], 6).ids == second.ids
        assert {k: t.sha256 for k, t in cold.export().items()} == {k: t.sha256 for k, t in recovered.items()}
    assert unstamped(path) == unstamped(file_of(tmp_path / "elsewhere"))


def test_a_foreign_file_stays_until_its_owner_saves(tmp_path: Path) -> None:
    with open_small(tmp_path) as model:
        session = model.session("chat")
        answer(session, PROMPT, 1)
        session.save()
        path = file_of(tmp_path)
        path.write_bytes(b"DS4RKV01" + path.read_bytes()[8:])
        before, stat = path.read_bytes(), path.stat()
        fresh = model.session("chat", cache_scope="")
        model.bank.clear()
        assert not fresh.resume()
        assert answer(fresh, PROMPT, 1).reuse["miss"] == "checkpoint_foreign"
        assert answer(model.session("other", "ar"), PROMPT, 1).reuse["miss"] == "new_session"
        assert answer(model.session("third"), [1, 2, 3], 1).reuse["miss"] == "new_session"  # not that session's file
        now = path.stat()
        assert path.read_bytes() == before
        assert (now.st_ino, now.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
        fresh.save()
        assert path.read_bytes()[:8] == b"QWMTKV02"


def test_the_command_goes_on_in_another_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWENMTP_CHECKPOINT_DIR", str(tmp_path))
    common = ["generate", "--model", str(SMALL), "--dtype", "float32", "--ignore-stop", "--json", "--session", "chat"]
    sampler = ["--temperature", "0.6", "--seed", "5", "--max-tokens", "9"]

    def here(*argv: str) -> dict[str, Any]:
        assert main([*common, *sampler, *argv]) == 0
        return dict(json.loads(capsys.readouterr().out))

    def there(*argv: str) -> dict[str, Any]:
        env = {**os.environ, "PYTHONPATH": str(Path(qwenmtp.__file__).parents[1])}
        command = [sys.executable, "-m", "qwenmtp", *common, *sampler, *argv]
        return dict(json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout))

    first = here("--ids", "9,11,10")
    assert first["reuse"]["source"] == "none"
    second = there("--ids", "4,5")
    assert second["reuse"] == {"restored": 12, "mode": "exact", "source": "store", "miss": None}
    assert second["usage"] == {"prompt": 14, "cached": 12, "prefilled": 2, "completion": 9}
    third = here("--ids", "6", "--ar")
    assert third["reuse"]["restored"] == 0  # another mode is another conversation
    with qwenmtp.load(SMALL, dtype="float32", checkpoint_mode="off") as model:
        session = model.session()
        params = SamplingParams(temperature=0.6, seed=5)
        for prompt, turn in (([9, 11, 10], first), ([4, 5], second)):
            for _ in session.generate([*session.ids, *prompt], params, max_tokens=9, ignore_stop=True):
                pass
            assert session.last_turn is not None
            assert list(session.last_turn.ids) == turn["ids"]

    for path in tmp_path.rglob("*.qwmtkv"):
        path.write_bytes(path.read_bytes()[:-1])
    again = here("--ids", "9,11,10")
    assert again["reuse"]["miss"] == "checkpoint_corrupt"
    assert again["ids"] == first["ids"]
