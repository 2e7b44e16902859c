"""A user's script that uses every public name passes mypy --strict and pyright, and runs."""

import ast
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qwenmtp

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "user_script.py"
PACKAGE = Path(qwenmtp.__file__).parents[1]


def test_the_script_uses_every_public_name() -> None:
    tree = ast.parse(SCRIPT.read_text())
    imported = {
        a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "qwenmtp" for a in n.names
    }
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    used |= {
        name
        for n in ast.walk(tree)
        if isinstance(n, ast.arg) and n.annotation
        for name in ast.unparse(n.annotation).split()
    }
    assert imported == set(qwenmtp.__all__)
    assert imported - used == set()


def test_mypy_takes_it_strictly(tmp_path: Path) -> None:
    # The package's own files are followed and not judged, as those of an installed one are.
    options = ("--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), "--config-file", os.devnull)
    command = [sys.executable, "-m", "mypy", *options]
    # mypy finds an installed package by itself and refuses its folder here.
    env = {**os.environ, "MYPYPATH": "" if PACKAGE.name == "site-packages" else str(PACKAGE)}
    run = subprocess.run([*command, str(SCRIPT)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stderr
    assert [line for line in run.stdout.splitlines() if line.startswith(str(SCRIPT))] == []


@pytest.mark.skipif(not shutil.which("node"), reason="pyright runs on node")
def test_pyright_takes_it(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)  # an absolute path of "include" is ignored
    (tmp_path / "pyrightconfig.json").write_text(
        f'{{"typeCheckingMode": "strict", "extraPaths": ["{PACKAGE}"], "include": ["{SCRIPT.name}"]}}'
    )
    env = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    pyright = [sys.executable, "-m", "pyright"]
    if subprocess.run([*pyright, "--version"], env=env, capture_output=True, check=False).returncode:
        pytest.skip("pyright's own program, which its wheel fetches from npm, is not to be had here")
    command = [*pyright, "--pythonpath", sys.executable, "-p", str(tmp_path)]
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert run.stdout.startswith("0 errors, 0 warnings"), run.stdout


def test_the_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = runpy.run_path(str(SCRIPT))
    assert names["main"](str(HERE.parents[1] / "models" / "demo")) == 0
    assert "length 4" in capsys.readouterr().out
