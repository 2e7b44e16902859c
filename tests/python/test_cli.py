"""The command line as a user's shell sees it: output, exit codes, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qwenmtp
from qwenmtp.cli import main
from qwenmtp.commands import COMMANDS
from qwenmtp.terminal import human_bytes, table

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "models" / "demo")
TINY = str(ROOT / "tests" / "golden" / "model" / "small")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def test_generate_streams_text_then_one_line_of_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "generate", "--model", DEMO, "def main(argv):", "--max-tokens", "8", "--temperature", "0"
    )
    assert code == 0
    assert out == " ...\n\n\ndef main(arg_list"
    assert "5 prompt tokens" in err
    assert "8 generated at" in err
    assert err.count("\n") == 2


def test_generate_json_has_the_documented_fields(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys,
        "generate",
        "--model",
        DEMO,
        "--ids",
        "1,2,3",
        "--max-tokens",
        "4",
        "--temperature",
        "0",
        "--ar",
        "--json",
    )
    turn = json.loads(out)
    assert code == 0
    assert err == ""
    assert set(turn) >= {"ids", "text", "finish", "usage", "timing", "stats", "reuse"}
    assert len(turn["ids"]) == 4
    assert turn["usage"] == {"prompt": 3, "cached": 0, "prefilled": 3, "completion": 4}
    assert turn["timing"]["load"] > 0


def test_generate_from_a_file_equals_the_same_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("import os\n")
    options = ("--model", DEMO, "--max-tokens", "4", "--temperature", "0", "--json")
    from_file = json.loads(run(capsys, "generate", "--file", str(tmp_path / "p.txt"), *options)[1])
    from_text = json.loads(run(capsys, "generate", "import os\n", *options)[1])
    assert from_file["ids"] == from_text["ids"]


def test_generate_chat_stops_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "generate", "--model", DEMO, "--chat", "What does os.path.join do?", "--temperature", "0", "--json"
    )
    assert code == 0
    assert json.loads(out)["finish"] == "stop"


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("generate", "--model", "/no/such", "x"), 3, "is no folder"),
        (("generate", "--model", DEMO, ""), 2, "empty"),
        (("generate", "--model", DEMO, "--ids", "4096"), 2, "4096"),
        (("generate", "--model", DEMO, "--file", "/no/such"), 3, "No such file"),
        (("generate", "--model", DEMO, "x", "--temperature", "-1"), 2, "temperature"),
        (("generate", "--model", DEMO, "x", "--seed", "-1"), 2, "seed"),
        (("generate", "--model", DEMO, "--ids", "1", "--chat"), 2, "--chat takes text"),
        (("info", "/no/such"), 3, "is no folder"),
        (("convert", "/no/such", "/tmp/never"), 3, "/no/such"),
    ],
    ids=lambda v: "",
)
def test_errors_are_one_line_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], code: int, words: str
) -> None:
    found, out, err = run(capsys, *argv)
    assert found == code
    assert out == ""
    assert words in err
    assert err.startswith("qwenmtp: ")
    assert err.count("\n") == 1


def test_errors_as_json_carry_their_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", "/no/such", "--json")
    assert code == 3
    assert json.loads(out)["error"]["code"] == "model_load_error"


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("generate",),
        ("generate", "a", "--ids", "1"),
        ("generate", "a", "--depth", "6"),
        ("generate", "--ids", "1,x"),
        ("unknown",),
    ],
    ids=lambda v: "-".join(v) or "nothing",
)
def test_usage_errors_exit_with_2(argv: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


def test_a_file_that_is_not_utf8_names_the_byte(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"abc\xff")
    code, _, err = run(capsys, "generate", "--model", DEMO, "--file", str(tmp_path / "p.txt"))
    assert code == 3
    assert "not UTF-8: byte 3 is 0xff" in err


def test_info_lists_every_class_and_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, "info", DEMO, "--json")[1])
    trunk = report["classes"]["trunk"]
    assert sum(c["bytes_per_token"] for c in trunk.values()) == pytest.approx(
        report["bytes_per_token"]["trunk"], abs=len(trunk)
    )  # each class is rounded to a byte
    experts = trunk["routed experts"]
    assert experts["bytes_per_token"] == experts["bytes"] * 4 // 16
    text = run(capsys, "info", DEMO)[1]
    assert "routed experts" in text
    assert "8 layers (2 attention)" in text


def test_plan_says_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", DEMO, "--context", "32768", "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["total"] == sum(plan[p] for p in ("weights", "table", "hot_rows", "kv", "recurrent", "boundaries"))
    code, out, _ = run(capsys, "plan", DEMO, "--context", "32768", "--memory", "10MiB")
    assert code == 4
    assert "does not fit" in out


def test_plan_of_an_open_model_equals_the_command_s(demo: qwenmtp.Model, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "plan", DEMO, "--context", "4096", "--dtype", "float32", "--json")[1]
    assert demo.plan(4096).to_json() == json.loads(out)


def test_table_interleaves_and_verifies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "rows")
    assert run(capsys, "table", "interleave", DEMO, "--file", file)[0] == 0
    assert run(capsys, "table", "verify", DEMO, "--file", file)[0] == 0
    raw = bytearray(Path(file).read_bytes())
    raw[-50] ^= 1
    Path(file).write_bytes(raw)
    code, _, err = run(capsys, "table", "verify", DEMO, "--file", file)
    assert code != 0, err


def test_settings_show_where_a_value_came_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWENMTP_PREFILL_CHUNK", "77")
    fields = json.loads(run(capsys, "settings", "--json")[1])["fields"]
    assert (fields["prefill.chunk"]["value"], fields["prefill.chunk"]["source"]) == (77, "QWENMTP_*")


def test_bench_reports_every_case_with_its_roofline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    csv = tmp_path / "rows.csv"
    argv = ("bench", "prefill", "--model", TINY, "--tokens", "12", "--repeats", "5", "--csv", str(csv), "--json")
    code, out, _ = run(capsys, *argv)
    report = json.loads(out)
    assert code == 0
    assert report["read_bandwidth"] > 1e8
    assert report["results"][0]["repeats"] == 5
    head, row = csv.read_text().splitlines()
    assert {"median", "p90", "bytes_moved", "commit", "command", "mlx"} <= set(head.split(","))
    assert "prefill" in row


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_help_has_examples(capsys: pytest.CaptureFixture[str], command: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command.name, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert all(example in out for example in command.examples)


def spawn(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "qwenmtp", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(qwenmtp.__file__).parents[1]), "PYTHONUNBUFFERED": "1"},
    )


def test_ctrl_c_stops_at_the_next_token_with_130() -> None:
    argv = ("generate", "--model", DEMO, "def main(argv):", "--max-tokens", "20000", "--ignore-stop", "--seed", "1")
    with spawn(*argv) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finish cancelled" in err
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    argv = ("generate", "--model", DEMO, "def main(argv):", "--max-tokens", "400", "--ignore-stop", "--seed", "1")
    with spawn(*argv) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
    assert "Traceback" not in err
    assert process.returncode == 1


def test_tables_align_numbers_to_the_right() -> None:
    assert table([("a", 1), ("bb", 20)], ("name", "n")).splitlines() == ["name   n", "----  --", "a      1", "bb    20"]


@pytest.mark.parametrize(("n", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1.0 TiB")])
def test_bytes_for_people(n: int, text: str) -> None:
    assert human_bytes(n) == text
