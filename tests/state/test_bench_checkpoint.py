"""`qwenmtp bench checkpoint` measures all four arms and names the numbers that have targets."""

import json
from pathlib import Path

import pytest

from qwenmtp.cli import main


def test_every_arm_and_target(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    argv = ["bench", "checkpoint", "--tokens", "4", "--repeats", "2", "--dir", str(tmp_path), "--json"]
    assert main(argv) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [c["name"] for c in results["cases"]] == ["plain write", "save", "plain read", "restore"]
    assert {c["work"] for c in results["cases"]} == {117_211_136 / 1e9}
    assert {c["repeats"] for c in results["cases"]} == {2}
    assert results["save_share_of_plain"] > 0
    assert results["restore_share_of_plain"] > 0
    assert results["restore_beyond_payload_bytes"] < 64 << 20
    assert list(tmp_path.iterdir()) == []
