"""`qwenmtp checkpoint` on files written by the independent encoder."""

import importlib.util
import json
from pathlib import Path

import pytest

from qwenmtp.checkpoint_command import _age, default_root
from qwenmtp.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    spec = importlib.util.spec_from_file_location("qwmtkv02", ROOT / "tests" / "oracle" / "qwmtkv02.py")
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    head, data = oracle.random_state(oracle.TINY, 9, seed=3)
    path = tmp_path / "chat.qwmtkv"
    path.write_bytes(oracle.encode(oracle.TINY, head, data))
    path.chmod(0o600)
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["checkpoint", *argv])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("action", ["inspect", "verify"])
def test_a_good_file_is_described(capsys: pytest.CaptureFixture[str], good: Path, action: str) -> None:
    code, out, _ = run(capsys, action, str(good), "--json")
    (info,) = json.loads(out)["files"]
    assert code == 0
    assert (info["outcome"], info["n_tokens"], info["mode"]) == ("ok", 9, "mtp")
    text = run(capsys, action, str(good))[1]
    assert "chat.qwmtkv" in text
    assert "ok" in text


def test_a_flipped_payload_byte_is_found_by_verify_alone(capsys: pytest.CaptureFixture[str], good: Path) -> None:
    data = bytearray(good.read_bytes())
    data[16384] ^= 1  # the first tensor's first byte
    good.write_bytes(data)
    assert run(capsys, "inspect", str(good))[0] == 0
    code, out, _ = run(capsys, "verify", str(good))
    assert code == 1
    assert "corrupt: " in out


def test_an_old_version_is_refused(capsys: pytest.CaptureFixture[str], good: Path) -> None:
    good.write_bytes(b"QWMTKV01" + good.read_bytes()[8:])
    code, out, _ = run(capsys, "inspect", str(good), "--json")
    assert code == 1
    assert json.loads(out)["files"][0]["outcome"] == "old_version"


@pytest.mark.parametrize("argv", [("inspect",), ("verify",), ("prune",)], ids=lambda a: a[0])
def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert "needs" in err


def test_a_root_without_a_store_is_empty(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for argv in (("ls", str(tmp_path)), ("prune", str(tmp_path), "--max-bytes", "0")):
        code, out, _ = run(capsys, *argv)
        assert (code, out) == (0, "no checkpoints\n")


def test_the_root_is_the_setting_or_the_system_s_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWENMTP_CHECKPOINT_DIR", "/some/where")
    assert default_root() == Path("/some/where")
    monkeypatch.delenv("QWENMTP_CHECKPOINT_DIR")
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_root() == Path.home() / "Library" / "Caches" / "qwenmtp" / "sessions"


def test_ages_read_as_people_say_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1e6)
    ages = [_age(int((1e6 - s) * 1e9)) for s in (5, 120, 7200, 3 * 86400)]
    assert ages == ["just now", "2 min ago", "2 h ago", "3 d ago"]
