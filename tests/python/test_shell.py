"""Manners of the command line: completions, JSON from every command, colour and progress on terminals alone."""

import argparse
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qwenmtp
from qwenmtp import completion
from qwenmtp.cli import EPILOG, EXIT_CODES, main, parser
from qwenmtp.terminal import ProgressLine, painted

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "models" / "demo")
TINY = str(ROOT / "tests" / "golden" / "model" / "small")
COMMANDS = completion.subparsers(parser())
ENV = {**os.environ, "PYTHONPATH": str(Path(qwenmtp.__file__).parents[1])}


def bash_offers(*words: str) -> set[str]:
    """What bash completes the last word to."""
    line = " ".join(f"'{word}'" for word in words)
    script = completion.script(parser(), "bash")
    program = (
        f'{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _qwenmtp; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    return set(subprocess.check_output(["bash", "-c", program], text=True).split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("qwenmtp", "ge"), {"generate"}),
        (("qwenmtp", "generate", "--dtype", ""), {"float32", "bfloat16"}),
        (("qwenmtp", "generate", "--m"), {"--model", "--max-tokens"}),
        (("qwenmtp", "checkpoint", "pr"), {"prune"}),
        (("qwenmtp", "plan", "--residency", "r"), {"resident"}),
        (("qwenmtp", "info", "models/"), set()),  # bash goes on with file names
    ],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else "",
)
def test_bash_completes(words: tuple[str, ...], offered: set[str]) -> None:
    assert bash_offers(*words) == offered


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_command_and_option_is_completed(shell: str) -> None:
    text = completion.script(parser(), shell)
    for name, command in COMMANDS.items():
        flags = [flag for action in completion.actions(command) for flag in action.option_strings]
        for flag in flags:
            wanted = rf"from {name}'.* -l {flag[2:]}( |$)" if shell == "fish" else rf'{name}\).*[ "]{flag}[ "]'
            assert re.search(wanted, text, re.MULTILINE), f"{name} {flag}"


@pytest.mark.parametrize(
    "shell",
    [pytest.param(s, marks=pytest.mark.skipif(not shutil.which(s), reason=f"no {s}")) for s in completion.SHELLS],
)
def test_the_shell_takes_its_completions(shell: str) -> None:
    text = completion.script(parser(), shell)
    assert subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=True).stderr == ""


def test_every_command_has_json() -> None:
    without = [name for name, p in COMMANDS.items() if "--json" not in p._option_string_actions]
    assert without == []


@pytest.mark.parametrize(
    "argv",
    [
        ("generate", "--model", DEMO, "--ids", "1", "--max-tokens", "1"),
        ("info", DEMO),
        ("plan", DEMO, "--context", "64"),
        ("table", "interleave", DEMO, "--file", "{tmp}/rows"),
        ("settings",),
        ("checkpoint", "ls", "{tmp}"),
        ("bench", "prefill", "--model", TINY, "--tokens", "4", "--repeats", "5"),
        ("completion", "zsh"),
        ("convert", TINY, "{tmp}/pack"),
        ("verify", "--model", "/no/such"),
        ("checkpoint", "inspect"),
    ],
    ids=lambda argv: "-".join(argv[:2]).replace("/", "_"),
)
def test_json_is_one_object_and_nothing_on_a_pipe_is_coloured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, argv: tuple[str, ...]
) -> None:
    main([*(part.replace("{tmp}", str(tmp_path)) for part in argv), "--json"])
    out, err = capsys.readouterr()
    assert isinstance(json.loads(out), dict)
    assert "\x1b" not in out + err


def test_every_command_is_asked_for_json_here() -> None:
    (mark,) = (
        m for m in test_json_is_one_object_and_nothing_on_a_pipe_is_coloured.pytestmark if m.name == "parametrize"
    )
    assert {argv[0] for argv in mark.args[1]} == set(COMMANDS)


def test_colour_is_for_terminals(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal: Any = stream(True)
    pipe: Any = stream(False)
    assert painted("ok", "green", terminal) == "\x1b[32mok\x1b[0m"
    assert painted("ok", "green", pipe) == "ok"
    monkeypatch.setenv("TERM", "dumb")
    assert painted("ok", "green", terminal) == "ok"


@pytest.mark.parametrize(("value", "coloured"), [("1", False), ("0", False), ("", True)])
def test_no_color_is_obeyed_whatever_it_says(
    stream: Any, monkeypatch: pytest.MonkeyPatch, value: str, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", value)
    terminal: Any = stream(True)
    assert ("\x1b" in painted("FAIL", "red", terminal)) == coloured


def test_progress_leaves_a_dumb_terminal_alone(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal: Any = stream(True)
    with ProgressLine("loading", terminal) as line:
        line(1, 2)
    assert terminal.text == ""


@pytest.fixture(params=[True, False], ids=["rich", "plain"])
def rich(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether rich can be imported, on a terminal that moves its cursor."""
    monkeypatch.setenv("TERM", "xterm")
    if not request.param:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    return bool(request.param)


def test_progress_shows_on_a_terminal_and_leaves_no_trace(stream: Any, rich: bool) -> None:
    terminal: Any = stream(True)
    with ProgressLine("reading", terminal) as line:
        line(1, 4)
        assert "reading" in terminal.text
        assert "25%" in terminal.text
        assert ("#" in terminal.text) != rich
        line.clear()
        shown = terminal.text
        line.clear()
        assert terminal.text == shown
        line(1, 2)
        assert "50%" in terminal.text.removeprefix(shown)
    assert terminal.text.endswith("\r\x1b[1A\x1b[2K" if rich else "\r\x1b[K")


def test_progress_says_nothing_on_a_pipe(stream: Any, rich: bool) -> None:
    pipe: Any = stream(False)
    with ProgressLine("reading", pipe) as line:
        line(1, 4)
    assert pipe.text == ""


@pytest.mark.parametrize("refused", [False, True])
def test_richs_bar_is_coloured_only_where_colour_is_wanted(
    stream: Any, monkeypatch: pytest.MonkeyPatch, rich: bool, refused: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", "1" if refused else "")
    terminal: Any = stream(True)
    with ProgressLine("reading", terminal) as line:
        line(1, 4)
    assert bool(re.search(r"\x1b\[[\d;]*3\d", terminal.text)) == (rich and not refused)


@pytest.mark.parametrize(("before", "mark"), [("", "━"), ("sys.modules['rich'] = None; ", "#")], ids=["rich", "plain"])
def test_a_real_terminal_sees_progress(tmp_path: Path, before: str, mark: str) -> None:
    code = f"import sys; {before}from qwenmtp.cli import main; sys.exit(main())"
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        command = [sys.executable, "-c", code, "convert", TINY, str(tmp_path / "a")]
        subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env={**ENV, "TERM": "xterm"}, check=True)
        os.close(theirs)
        shown = terminal.read(1 << 16).decode(errors="replace")
    assert "converting" in shown
    assert mark in shown


def test_a_pipe_sees_no_progress_and_loads_no_rich(tmp_path: Path) -> None:
    code = "import sys; from qwenmtp.cli import main; sys.exit(main() or 'rich' in sys.modules)"
    command = [sys.executable, "-c", code, "convert", TINY, str(tmp_path / "a")]
    assert subprocess.run(command, capture_output=True, env=ENV, check=True).stderr == b""


def test_version_names_mlx_and_the_build() -> None:
    out = subprocess.check_output([sys.executable, "-m", "qwenmtp", "--version"], env=ENV, text=True)
    assert re.fullmatch(r"qwenmtp \S+ \(MLX \d+\.\d+\.\d+, \w+ [\d.]+, \w+\)\n", out)


def test_help_tells_every_exit_code() -> None:
    codes = {0, 1, 2, 130, *(code for _, code in EXIT_CODES)}
    assert {int(n) for n in re.findall(r"\d+", EPILOG)} == codes
    assert " ".join(EPILOG.split()) in " ".join(parser().format_help().split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    silent = [a.dest for a in completion.actions(COMMANDS[name]) if not a.help or a.help is argparse.SUPPRESS]
    assert silent == []
