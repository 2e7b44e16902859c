"""tools/wheels/check_macho.py: a module that some Mac could not load is named before it is shipped."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import check_macho
import macho
import pytest
from synthetic_macho import image

ROOT = Path(__file__).resolve().parents[2]
LIBSYSTEM = "/usr/lib/libSystem.B.dylib"
GOOD: dict[str, Any] = {
    "libraries": [check_macho.LIBCXX, check_macho.LIBMLX, LIBSYSTEM],
    "rpaths": [check_macho.RPATH],
    "imports": {"_op": check_macho.LIBMLX, "__Znwm": check_macho.LIBCXX, "_free": LIBSYSTEM, "_PyList_New": None},
}
MLX = {"14.whl": ["_op", "_other"], "15.whl": ["_op"], "26.whl": ["_more", "_op"]}


def judged(mlx: dict[str, list[str]] = MLX, **changed: Any) -> list[str]:
    libraries = {name: macho.parse(image(exports=exports)) for name, exports in mlx.items()}
    module = macho.parse(image(**{**GOOD, **changed}))
    return check_macho.faults(module, libraries, check_macho.libcxx_symbols())


def test_a_good_module_passes() -> None:
    assert judged() == []


def test_a_symbol_missing_from_one_mlx_is_caught() -> None:
    assert judged({**MLX, "15.whl": ["_other"]}) == ["_op is not in 15.whl"]


def test_a_symbol_newer_than_libcxx_of_macos_14_is_caught() -> None:
    # std::__1::__hash_memory came with LLVM 21: a module that takes it dies at load on macOS 14 and 15.
    newer = "__ZNSt3__113__hash_memoryEPKvm"
    imports = {**GOOD["imports"], newer: check_macho.LIBCXX}
    assert judged(imports=imports) == [f"{newer} is not in macOS 14's libc++"]


def test_a_symbol_of_no_library_is_caught() -> None:
    assert judged(imports={**GOOD["imports"], "_mystery": None}) == ["_mystery is in no library of the link"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cpu": 0x01000007}, "expected arm64"),
        ({"minos": (15, 0)}, "oldest system (15, 0)"),
        ({"rpaths": ["/opt/mlx/lib"]}, "rpath"),
        ({"signed": False}, "no code signature"),
        ({"libraries": [*GOOD["libraries"], "/opt/homebrew/lib/libfoo.dylib"]}, "libfoo"),
    ],
    ids=["cpu", "minos", "rpath", "signature", "library"],
)
def test_each_promise_is_checked(changed: dict[str, Any], words: str) -> None:
    (fault,) = judged(**changed)
    assert words in fault


def test_exports_with_shared_prefixes_are_all_read() -> None:
    names = ["__ZN3mlx4core3addE", "__ZN3mlx4core3subE", "_main"]
    assert macho.parse(image(exports=names)).exports == set(names)


@pytest.mark.parametrize("cut", [0, 16, 40, 200])
def test_a_cut_file_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match=r"Mach-O|magic"):
        macho.parse(image(**GOOD)[:cut])


def test_a_fat_file_is_refused() -> None:
    with pytest.raises(ValueError, match="thin"):
        macho.parse(b"\xca\xfe\xba\xbe" + bytes(60))


def test_the_command_is_red_for_a_fault(tmp_path: Path) -> None:
    (tmp_path / "libmlx.dylib").write_bytes(image(exports=["_op"]))
    (tmp_path / "_core.so").write_bytes(image(**GOOD))
    (tmp_path / "bad.so").write_bytes(image(**{**GOOD, "signed": False}))
    tool = str(ROOT / "tools" / "wheels" / "check_macho.py")
    for name, code in (("_core.so", 0), ("bad.so", 1)):
        command = [sys.executable, tool, str(tmp_path / name), "--mlx", str(tmp_path / "libmlx.dylib")]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == code


def test_the_list_of_libcxx_has_no_line_twice() -> None:
    lines = [line for line in check_macho.LIST.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(set(lines)) > 400
