#!/usr/bin/env python3
"""Builds and checks the distributions: `python3 tools/wheels/build.py [sdist] [linux] [macos] [--python P]`.

Needs Python 3.11, a C++20 compiler and PyPI; makes its own environment. Wheels are built from the sdist, so that an
incomplete one cannot pass, and carry the commit's time, so that two builds are equal byte for byte. The macOS wheel is
cross-built with ziglang. Under Python 3.12 or later (--python) a wheel is cp312-abi3, under 3.11 cp311.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
ZIGLANG = "ziglang==0.17.1"
MACOS = ("14", "15", "26")  # oldest first: it is the one built against

FACTS = """
import json, sys, sysconfig, ziglang, pathlib
print(json.dumps({"version": sys.version_info[:2], "include": sysconfig.get_path("include"),
    "multiarch": sysconfig.get_config_var("MULTIARCH") or "",
    "zig": str(pathlib.Path(ziglang.__file__).parent / "zig")}))
"""


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> None:
    """One command; its failure ends the build."""
    subprocess.run([str(part) for part in command], cwd=cwd, env={**os.environ, **env}, check=True)


class Builder:
    """One Python's environment, and the folder it builds in.

    Args:
        python: Interpreter that the wheels are for.
        work: Folder for the environment and all that is made on the way.
        out: Where distributions go.
    """

    def __init__(self, python: str, work: Path, out: Path):
        self.work, self.out = work, out
        self.project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        self.python = work / "venv" / "bin" / "python"
        if not self.python.exists():
            run(python, "-m", "venv", work / "venv")
            run(self.python, "-m", "pip", "install", "-q", *self.project["build-system"]["requires"], "ninja", ZIGLANG)
        self.facts = json.loads(subprocess.check_output([self.python, "-c", FACTS], text=True))
        minor = self.facts["version"][1]
        self.abi = "cp311-cp311" if minor == 11 else "cp312-abi3"
        epoch = subprocess.run(
            ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()
        self.env = {
            "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", epoch or "315532800"),
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
        }

    def sdist(self) -> Path:
        """The source distribution, and its unpacked tree under `work`."""
        self._backend("build_sdist", ROOT)
        path = self._newest("*.tar.gz")
        tree = self.work / "source"
        shutil.rmtree(tree, ignore_errors=True)
        shutil.unpack_archive(path, tree)
        (only,) = tree.iterdir()
        self.tree = only
        return path

    def linux(self) -> Path:
        """The manylinux wheel of this machine's architecture; libmlx stays with its own package."""
        self._wheel(f"manylinux_2_35_{platform.machine()}", {})
        wheel = self._newest("*manylinux*.whl")
        run(self.python, HERE / "check_wheel.py", wheel)
        return wheel

    def macos(self) -> Path:
        """The wheel for macOS 14 and later on Apple silicon."""
        mlx = [self._mlx_wheel(system) for system in MACOS]
        stubs = self._stubs()
        env = {"ZIG": self.facts["zig"], "QWENMTP_MLX_ROOT": str(self._unpacked(mlx[0])), "QWENMTP_STUBS": str(stubs)}
        defines = {
            "CMAKE_TOOLCHAIN_FILE": self.tree / "tools" / "wheels" / "macos" / "toolchain.cmake",
            "CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON",
            "Python_INCLUDE_DIR": self._headers(),
            "SKBUILD_SOABI": "cpython-311-darwin",
        }
        self._wheel("macosx_14_0_arm64", {f"cmake.define.{k}": str(v) for k, v in defines.items()}, **env)
        wheel = self._newest("*macosx*.whl")
        run(self.python, HERE / "check_wheel.py", wheel)
        run(self.python, HERE / "check_macho.py", wheel, "--mlx", *mlx)
        return wheel

    def _backend(self, call: str, tree: Path, *config: dict[str, str], **env: str) -> None:
        """One hook of the build backend, in the environment; `tree` is the project it sees."""
        script = f"from scikit_build_core import build; build.{call}({str(self.out)!r}, *{list(config)!r})"
        run(self.python, "-c", script, cwd=tree, **self.env, **env)

    def _wheel(self, platform_tag: str, config: dict[str, str], **env: str) -> None:
        folder = self.work / platform_tag
        shutil.rmtree(folder, ignore_errors=True)
        flags = f"-ffile-prefix-map={self.tree}=. -ffile-prefix-map={self.work}=."
        tags = {"wheel.tags": f"{self.abi}-{platform_tag}", "build-dir": str(folder)}
        self._backend("build_wheel", self.tree, {**tags, **config}, CXXFLAGS=flags, **env)

    def _newest(self, pattern: str) -> Path:
        return max(self.out.glob(pattern), key=lambda path: path.stat().st_mtime)

    def _mlx_wheel(self, system: str) -> Path:
        """mlx-metal's wheel for one macOS: headers, libmlx.dylib, CMake files."""
        version = next(r for r in self.project["build-system"]["requires"] if r.startswith("mlx=="))
        version = version.removeprefix("mlx==").partition(";")[0].strip()
        folder = self.work / f"mlx-{version}"
        name = f"mlx_metal-{version}-py3-none-macosx_{system}_0_arm64.whl"
        if not (folder / name).exists():
            download = (self.python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder)
            run(*download, "--platform", f"macosx_{system}_0_arm64", f"mlx-metal=={version}")
        return folder / name

    def _unpacked(self, wheel: Path) -> Path:
        folder = wheel.with_suffix("")
        if not folder.exists():
            shutil.unpack_archive(wheel, folder, "zip")
        return folder / "mlx"

    def _headers(self) -> Path:
        """Python's headers with the pyconfig.h of a 64-bit Linux, which Debian hides behind one that refuses Darwin."""
        source, target = Path(self.facts["include"]), self.work / "headers"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        config = Path("/usr/include") / self.facts["multiarch"] / source.name / "pyconfig.h"
        if source.is_relative_to("/usr/include") and config.exists():
            shutil.copy(config, target / "pyconfig.h")
        return target

    def _stubs(self) -> Path:
        """A folder with the link stub of macOS 14's libc++: only symbols that it is known to have."""
        sys.path.insert(0, str(HERE))
        from check_macho import libcxx_symbols

        folder = self.work / "stubs"
        folder.mkdir(exist_ok=True)
        (folder / "libcxxsystem.tbd").write_text(
            "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: '/usr/lib/libc++.1.dylib'\n"
            "current-version: 1600\ncompatibility-version: 1\nexports:\n  - targets: [ arm64-macos ]\n    symbols: [ "
            + ", ".join(sorted(libcxx_symbols()))
            + " ]\n...\n"
        )
        return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", nargs="*", help="of sdist, linux and macos; none is all of them")
    parser.add_argument("--python", default=sys.executable, help="interpreter to build for (default: this one)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheels", help="intermediate files")
    args = parser.parse_args()
    if unknown := set(args.kind) - {"sdist", "linux", "macos"}:
        parser.error(f"no kind {sorted(unknown)}, expected some of sdist, linux, macos")
    work, out = args.work.resolve(), args.out.resolve()
    work.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    builder = Builder(args.python, work, out)
    for kind in dict.fromkeys(("sdist", *(args.kind or ("linux", "macos")))):
        started = time.monotonic()
        path = getattr(builder, kind)()
        print(f"{kind}: {path.name} in {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
