"""convert: all or nothing."""

import argparse
import errno
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from convert.release import names, run_python

from qwenmtp.convert import command, convert
from qwenmtp.errors import InvalidRequest, IoError


def test_an_existing_destination_is_untouched(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("pack", "link"):
        with pytest.raises(InvalidRequest, match="exists"):
            convert(tiny, tmp_path / name, "optimized-speed")
    assert names(tmp_path) == ["link", "pack"]


def test_a_destination_that_appears_meanwhile_is_untouched(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="appeared"):
        convert(tiny, tmp_path / "pack", "bare-speed", progress=lambda *_: (tmp_path / "pack").mkdir(exist_ok=True))
    assert names(tmp_path) == ["pack"]
    assert not names(tmp_path / "pack")


def test_an_interrupt_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def interrupt(done: int, total: int, _name: str) -> None:
        if done > total // 2:
            seen.extend(names(tmp_path))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tiny, tmp_path / "pack", "optimized-speed", progress=interrupt)
    assert seen == [f"pack.partial-{os.getpid()}"]
    assert not names(tmp_path)


@pytest.mark.parametrize("after", [0, 1, 40])
def test_a_full_disk_leaves_nothing(after: int, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, left = os.pwrite, iter(range(after))

    def full(fd: int, data: Any, at: int) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    before = len(names(Path("/dev/fd")))
    with pytest.raises(IoError, match="No space left on device"):
        convert(tiny, tmp_path / "pack", "optimized-speed")
    assert not names(tmp_path)
    assert len(names(Path("/dev/fd"))) == before


def test_too_little_space_is_refused_before_anything_is_written(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: argparse.Namespace(free=1000))
    monkeypatch.setattr(Path, "mkdir", None)
    with pytest.raises(IoError, match="1,000 are free"):
        convert(tiny, tmp_path / "pack", "optimized-speed")
    assert not names(tmp_path)


def test_a_limit_of_the_file_size_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "from qwenmtp.convert import convert; convert(sys.argv[1], sys.argv[2], 'optimized-speed')"
    )
    run = run_python(code, tiny, tmp_path / "pack")
    assert run.returncode == 1
    assert "IoError" in run.stderr.splitlines()[-1]
    assert "File too large" in run.stderr
    assert not names(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_command_leaves_nothing(number: int, tiny: Path, tmp_path: Path) -> None:
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args([str(tiny), str(tmp_path / "pack"), "--recipe", "bare-speed"])
    with pytest.raises(KeyboardInterrupt):
        command.run(args, lambda *_: os.kill(os.getpid(), number))
    assert not names(tmp_path)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == handlers
    assert command.run(args).recipe["name"] == "bare-speed"


def test_a_release_that_cannot_be_read_is_an_io_error(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("qwenmtp.convert.released.read_header", refuse)
    with pytest.raises(IoError, match="Permission denied"):
        convert(copy, tmp_path / "pack", "optimized-speed")
    assert names(tmp_path) == ["release"]


def test_a_missing_parent_is_an_error_not_a_folder(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(IoError, match="No such file"):
        convert(tiny, tmp_path / "absent" / "pack", "optimized-speed")
    assert not names(tmp_path)
