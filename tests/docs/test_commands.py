"""Every shell command of README and docs/ runs, in a folder laid out as the text assumes; exit code 0 each."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import qwenmtp
from qwenmtp.cli import parser

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Commands that install, build or test for minutes, and who runs them as they stand.
ELSEWHERE = {
    "pip install 'qwenmtp[cpu]'": "tools/wheels/try_wheel.py",
    "python3 tools/wheels/build.py": ".ci/run",
    "pip install 'mlx[cpu]==0.32.2' 'nanobind==3.1.0' 'scikit-build-core>=1.1,<1.2' ninja": "tools/skew.py",
    "pip install . --no-build-isolation --no-deps "
    "--config-settings cmake.define.QWENMTP_MLX_VERSION=0.32.2": "tools/skew.py",
}


def fenced(path: Path) -> list[str]:
    """The blocks of a text marked as shell."""
    return re.findall(r"^```sh\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def readme_commands() -> list[str]:
    """The README's two lines to paste."""
    return re.findall(r"^    (python3 .+)$", (ROOT / "README.md").read_text(), re.MULTILINE)


# tests/python/test_verify.py and test_shell.py run these; here they only have to parse.
LONG = ("qwenmtp verify", "qwenmtp bench")
COMMANDS = dict.fromkeys(
    line
    for path in TEXTS
    for block in fenced(path)
    for line in block.replace("\\\n", "").splitlines()
    if line.strip() and not line.startswith("#") and line not in ELSEWHERE
)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: the demo model, a prompt, a saved session, a released checkpoint."""
    home = tmp_path_factory.mktemp("home")
    for folder in ("models", "path/to", "bin", "ROOT", ".config/fish/completions"):
        (home / folder).mkdir(parents=True)
    (home / "models" / "demo").symlink_to(ROOT / "models" / "demo")
    (home / "path" / "to" / "release").symlink_to(ROOT / "tests" / "golden" / "model" / "small")
    (home / "examples").symlink_to(ROOT / "examples")
    (home / "prompt.txt").write_text("import os\n")
    oracle = runpy.run_path(str(ROOT / "tests" / "oracle" / "qwmtkv02.py"))
    state = oracle["random_state"](oracle["TINY"], 9, seed=3)
    (home / "chat.qwmtkv").write_bytes(oracle["encode"](oracle["TINY"], *state))
    (home / "chat.qwmtkv").chmod(0o600)
    for name, program in (("qwenmtp", f"{sys.executable} -m qwenmtp"), ("python", sys.executable)):
        (home / "bin" / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (home / "bin" / name).chmod(0o755)
    return home


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs_as_written(sandbox: Path, command: str) -> None:
    if command.startswith(LONG):
        parser().parse_args(shlex.split(command)[1:])
        return
    env = {
        **os.environ,
        "HOME": str(sandbox),
        "PATH": f"{sandbox / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(qwenmtp.__file__).parents[1]),
    }
    run = subprocess.run(["bash", "-c", command], cwd=sandbox, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_readme_has_two_commands_that_differ_in_extras_and_end() -> None:
    generate, test = readme_commands()
    install = 'python3 -m venv .venv && .venv/bin/pip install -q ".[{}]"'
    assert generate.startswith(install.format("cpu") + " && .venv/bin/qwenmtp generate --model models/demo ")
    assert test.startswith(install.format("cpu,test") + " --config-settings cmake.define.QWENMTP_TESTING=ON && ")
    assert test.endswith("/python -m pytest -q")


def test_the_first_readme_command_ends_in_generated_text(sandbox: Path) -> None:
    tail = readme_commands()[0].split(".venv/bin/")[-1]
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(qwenmtp.__file__).parents[1]),
        "PATH": f"{sandbox / 'bin'}:/bin:/usr/bin",
    }
    run = subprocess.run(["bash", "-c", tail], cwd=sandbox, env=env, capture_output=True, text=True, check=True)
    assert len(run.stdout) > 100
    assert "tok/s" in run.stderr


@pytest.mark.parametrize(("command", "runner"), ELSEWHERE.items())
def test_commands_run_elsewhere_are_there(command: str, runner: str) -> None:
    text = (ROOT / runner).read_text()
    told = [part for part in command.split() if part.startswith(("tools/", "--no-", "cmake.define", "'mlx"))]
    assert all(part.strip("'").partition("=")[0] in text for part in told), f"{runner} does not run {command}"
    assert any(command in path.read_text() for path in TEXTS)


def test_shell_blocks_are_marked_as_such() -> None:
    """An unmarked or indented block that reads like a command would escape the tests above."""
    escaped = []
    for path in TEXTS:
        lines = path.read_text().splitlines()
        escaped += [
            f"{path.name}: {line}"
            for line in lines
            if re.match(r"    (\.venv/bin/)?(python3?|pip|qwenmtp|cmake|bash) ", line)
            and line.strip() not in {*readme_commands(), *ELSEWHERE}
        ]
    assert escaped == []
