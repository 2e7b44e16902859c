"""tools/wheels/check_wheel.py: a wheel with a planted file, word or symbol version is refused."""

import base64
import hashlib
import subprocess
import zipfile
from pathlib import Path

import check_wheel
import pytest

INFO = "qwenmtp-0.1.0.dist-info"
FILES = {
    "qwenmtp/__init__.py": b"",
    "qwenmtp/_core.pyi": b"",
    "qwenmtp/bench/timing.py": b"x = 1\n",
    "qwenmtp/_core.cpython-311-darwin.so": b"\xcf\xfa\xed\xfe",
    f"{INFO}/METADATA": b"the scripted model of the tests is described here",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n",
}
ELF = """
 0x01 (NEEDED)  Shared library: [libmlx.so]
 0x01 (NEEDED)  Shared library: [libc.so.6]
 0x1d (RUNPATH) Library runpath: [$ORIGIN/../mlx/lib]
  0x0010:   Name: GLIBC_2.35  Flags: none  Version: 34
  0x0020:   Name: GLIBCXX_3.4.30  Flags: none  Version: 3
"""
TAG = "manylinux_2_35_x86_64"


def wheel(folder: Path, files: dict[str, bytes], record: dict[str, bytes] | None = None) -> Path:
    """A wheel whose RECORD is made from `record`, or from the files."""
    path = folder / "qwenmtp-0.1.0-cp311-cp311-macosx_14_0_arm64.whl"
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in (record or files).items()
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{INFO}/RECORD", "\n".join([*rows, f"{INFO}/RECORD,,"]))
    return path


def test_a_good_wheel_passes(tmp_path: Path) -> None:
    assert check_wheel.faults(wheel(tmp_path, FILES)) == []


@pytest.mark.parametrize(
    ("planted", "word"),
    [
        ({"_qwenmtp_testing.cpython-311-darwin.so": b""}, "qwenmtp_testing"),
        ({"qwenmtp/_core.cpython-311-darwin.so": b"N7qwenmtp7testing12ScriptedNet"}, "7qwenmtp7testing"),
        ({"qwenmtp/_core.cpython-311-darwin.so": b"\0ScriptedModel\0"}, "scripted"),
        ({"qwenmtp/_core.cpython-311-darwin.so": b"\0FaultyNetwork\0"}, "faulty"),
        ({"qwenmtp/keyed_sampler.py": b""}, "keyed_sampler"),
        ({"qwenmtp/_core.pyi": b"class KeyedSampler: ..."}, "keyedsampler"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_only_tests_may_have_is_found(tmp_path: Path, planted: dict[str, bytes], word: str) -> None:
    assert any(word in fault for fault in check_wheel.faults(wheel(tmp_path, {**FILES, **planted})))


@pytest.mark.parametrize("name", ["tests/test_x.py", "qwenmtp/_build.py.in", "qwenmtp/data.npz"])
def test_a_file_outside_the_package_is_found(tmp_path: Path, name: str) -> None:
    assert check_wheel.faults(wheel(tmp_path, {**FILES, name: b""})) == [f"{name} does not belong in a wheel"]


def test_a_second_module_is_found(tmp_path: Path) -> None:
    (fault,) = check_wheel.faults(wheel(tmp_path, {**FILES, "qwenmtp/_core.abi3.so": b""}))
    assert "expected the core alone" in fault


def test_record_must_name_every_file_and_no_other(tmp_path: Path) -> None:
    missing = {k: v for k, v in FILES.items() if k != "qwenmtp/__init__.py"}
    assert check_wheel.faults(wheel(tmp_path, FILES, missing)) == ["qwenmtp/__init__.py is not in RECORD"]
    assert check_wheel.faults(wheel(tmp_path, missing, FILES)) == ["RECORD names qwenmtp/__init__.py, which is missing"]


def test_record_must_have_the_files_hashes(tmp_path: Path) -> None:
    other = {**FILES, "qwenmtp/bench/timing.py": b"x = 2\n"}
    assert check_wheel.faults(wheel(tmp_path, FILES, other)) == ["qwenmtp/bench/timing.py is not what RECORD says"]


def test_a_linux_module_within_its_tag_passes() -> None:
    assert check_wheel.elf_faults(ELF, TAG) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("GLIBC_2.35", "GLIBC_2.36", "GLIBC_2.36 is newer"),
        ("GLIBCXX_3.4.30", "GLIBCXX_3.4.31", "GLIBCXX_3.4.31 is newer"),
        ("GLIBC_2.35", "ZLIB_1.2", "ZLIB_1.2 is newer"),
        ("libc.so.6", "libblas.so.3", "libblas.so.3"),
        ("libmlx.so", "libm.so.6", "expected libmlx"),
        ("$ORIGIN/../mlx/lib", "/root/venv/mlx/lib", "run path"),
    ],
    ids=["glibc", "libstdc++", "unknown", "library", "no-mlx", "rpath"],
)
def test_a_linux_module_beyond_its_tag_is_found(old: str, new: str, words: str) -> None:
    (fault,) = check_wheel.elf_faults(ELF.replace(old, new), TAG)
    assert words in fault


def test_a_wheel_of_another_tag_is_found() -> None:
    assert check_wheel.elf_faults(ELF, "linux_x86_64") == ["tag linux_x86_64, expected manylinux_2_35"]


def test_readelf_is_read_as_it_speaks_here() -> None:
    text = subprocess.check_output(["readelf", "-dVW", "/bin/sh"], text=True)
    assert any("libraries ['libc.so.6']" in fault for fault in check_wheel.elf_faults(text, TAG))
