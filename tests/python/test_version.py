"""A wrong MLX is refused in one line that says what to do, before the core is loaded."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import qwenmtp
from qwenmtp import _version
from qwenmtp._build import MLX_VERSION


def pretend(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], linux: bool) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(_version, "_is_linux", lambda: linux)


@pytest.mark.parametrize(
    ("installed", "linux", "found", "fix"),
    [
        ({}, False, "found none", f"pip install 'mlx=={MLX_VERSION}'"),
        ({"mlx": "0.31.0"}, False, "found 0.31.0", f"pip install 'mlx=={MLX_VERSION}'"),
        ({"mlx": "0.31.0", "mlx-cpu": "0.31.0"}, True, "found 0.31.0", f"pip install 'mlx[cpu]=={MLX_VERSION}'"),
        ({"mlx": MLX_VERSION}, True, "without a Linux back end", f"pip install 'mlx[cpu]=={MLX_VERSION}'"),
    ],
    ids=["none", "other", "other-linux", "no-back-end"],
)
def test_wrong_mlx(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], linux: bool, found: str, fix: str
) -> None:
    pretend(monkeypatch, installed, linux)
    with pytest.raises(ImportError) as caught:
        _version.check_mlx()
    message = str(caught.value)
    assert found in message
    assert message.endswith(fix)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("installed", "linux"),
    [
        ({"mlx": MLX_VERSION}, False),
        ({"mlx": MLX_VERSION, "mlx-cpu": MLX_VERSION}, True),
        ({"mlx": MLX_VERSION, "mlx-cuda-13": MLX_VERSION}, True),
    ],
    ids=["mac", "cpu", "cuda"],
)
def test_right_mlx(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], linux: bool) -> None:
    pretend(monkeypatch, installed, linux)
    _version.check_mlx()


def test_import_loads_nothing_heavy_and_starts_no_thread() -> None:
    script = "import json, sys, threading, qwenmtp; print(json.dumps([sorted(sys.modules), threading.active_count()]))"
    env = {**os.environ, "PYTHONPATH": str(Path(qwenmtp.__file__).parents[1])}
    modules, n_threads = json.loads(subprocess.check_output([sys.executable, "-c", script], env=env, text=True))
    assert not {"mlx", "mlx.core", "numpy", "tokenizers", "jinja2", "qwenmtp._core"} & set(modules)
    assert n_threads == 1


def test_every_public_name_is_there() -> None:
    assert {name for name in qwenmtp.__all__ if not hasattr(qwenmtp, name)} == set()
    assert set(qwenmtp.__all__) <= set(dir(qwenmtp))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = qwenmtp.nothing
