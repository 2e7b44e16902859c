"""A wrong MLX is refused in one line that says what to do, before the core is loaded."""

from importlib import metadata

import pytest

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
