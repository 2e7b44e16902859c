"""Every recorded behaviour of the reference replays through the C++ sampler and loops."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = sorted((ROOT / "tests" / "golden" / "decode").glob("*.jsonl.gz"))


@pytest.fixture(scope="module")
def replay() -> ModuleType:
    spec = importlib.util.spec_from_file_location("replay", ROOT / "tools" / "replay.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
def test_fixture_file_replays(replay: ModuleType, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = replay.main([str(path)])
    out = capsys.readouterr().out
    records = sum(1 for _ in replay.read(path))
    assert code == 0, out
    assert out.splitlines()[-1] == f"{records} passed, 0 failed"


def test_unknown_kinds_fields_and_gates_fail(replay: ModuleType) -> None:
    ar = next(replay.read(ROOT / "tests" / "golden" / "decode" / "ar.jsonl.gz"))
    assert replay.check(ar) is None
    assert "unknown kind" in replay.check({**ar, "kind": "other"})
    assert "unknown ['extra']" in replay.check({**ar, "extra": 1})
    assert "missing ['seed']" in replay.check({k: v for k, v in ar.items() if k != "seed"})
    assert "unknown gate" in replay.check({**ar, "env": {"MTPLX_SOMETHING": "1"}})
    assert "model.width" in replay.check({**ar, "model": {**ar["model"], "width": 1}})
    assert "finish_reason" in replay.check({**ar, "result": {**ar["result"], "finish_reason": "stop"}})


def test_a_failure_counts_once_and_sets_the_exit_code(
    replay: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text('{"kind": "other", "id": "a"}\n{"kind": "other", "id": "b"}\n')
    assert replay.main([str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 2 failed"
