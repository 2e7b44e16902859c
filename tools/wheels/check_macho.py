#!/usr/bin/env python3
"""Will this module load on macOS 14, 15 and 26? `python tools/wheels/check_macho.py WHEEL --mlx MLX_METAL_WHEEL...`

Reads, never runs: architecture, oldest system, libraries, rpath, signature, and every symbol the loader would look up.
A symbol of libmlx must be exported by each MLX wheel given; one of libc++ must be in libcxx-macos14.txt, which
`--list-libcxx WHEEL...` makes from wheels that Apple's own toolchain built for macOS 14 or older.
"""

from __future__ import annotations

import argparse
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import macho

OLDEST = (14, 0)
LIBCXX = "/usr/lib/libc++.1.dylib"
LIBMLX = "@rpath/libmlx.dylib"
LIBRARIES = {LIBCXX, LIBMLX, "/usr/lib/libSystem.B.dylib"}
RPATH = "@loader_path/../mlx/lib"
INTERPRETER = re.compile(r"__?Py")
LIST = Path(__file__).with_name("libcxx-macos14.txt")


def libcxx_symbols() -> frozenset[str]:
    """Symbols that macOS 14's libc++ is known to have."""
    return frozenset(line for line in LIST.read_text().splitlines() if line and not line.startswith("#"))


def faults(image: macho.Image, mlx: Mapping[str, macho.Image], libcxx: frozenset[str]) -> list[str]:
    """What would keep the module from loading, one sentence each.

    Args:
        image: The module.
        mlx: libmlx.dylib of each wheel it has to run with, by the wheel's name.
        libcxx: Symbols of the oldest libc++ it has to run with.
    """
    found = []
    if image.cpu != macho.ARM64:
        found.append(f"cpu {image.cpu:#x}, expected arm64")
    if image.minos != OLDEST:
        found.append(f"oldest system {image.minos}, expected {OLDEST}")
    if set(image.libraries) != LIBRARIES:
        found.append(f"libraries {sorted(image.libraries)}, expected {sorted(LIBRARIES)}")
    if image.rpaths != (RPATH,):
        found.append(f"rpath {image.rpaths}, expected {RPATH}")
    if not image.signed:
        found.append("no code signature: Apple silicon refuses it")
    stray = (s for s in image.imported_from(macho.FLAT) if not INTERPRETER.match(s))
    found += [f"{s} is in no library of the link" for s in sorted(stray)]
    found += [f"{s} is not in macOS 14's libc++" for s in sorted(image.imported_from(LIBCXX) - libcxx)]
    for name, library in mlx.items():
        found += [f"{s} is not in {name}" for s in sorted(image.imported_from(LIBMLX) - library.exports)]
    return found


def images(path: Path) -> Iterator[tuple[str, macho.Image]]:
    """Each module and dylib of a wheel, or the one file."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if name.endswith((".so", ".dylib")):
                    yield name, macho.parse(wheel.read(name))
    else:
        yield path.name, macho.parse(path.read_bytes())


def libmlx(path: Path) -> macho.Image:
    """libmlx.dylib of an MLX wheel, or the file itself."""
    return next(image for name, image in images(path) if name.endswith("libmlx.dylib"))


def list_libcxx(wheels: Iterable[Path]) -> set[str]:
    """Symbols that the wheels' arm64 files for macOS 14 or older take from the system's libc++."""
    symbols: set[str] = set()
    for wheel in wheels:
        for _, image in images(wheel):
            if image.cpu == macho.ARM64 and image.minos is not None and image.minos <= OLDEST:
                symbols |= image.imported_from(LIBCXX)
    return symbols


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", type=Path, nargs="+", help="wheel or module")
    parser.add_argument("--mlx", type=Path, nargs="+", default=[], help="MLX wheels or libmlx.dylib files")
    parser.add_argument("--list-libcxx", action="store_true", help="print libc++ symbols of the given wheels instead")
    args = parser.parse_args()
    if args.list_libcxx:
        print("\n".join(sorted(list_libcxx(args.module))))
        return 0
    if not args.mlx:
        parser.error("--mlx: name at least one MLX wheel")
    mlx = {path.name: libmlx(path) for path in args.mlx}
    bad = 0
    for path in args.module:
        for name, image in images(path):
            wrong = faults(image, mlx, libcxx_symbols())
            bad += len(wrong)
            print("".join(f"{name}: {fault}\n" for fault in wrong), end="")
            counts = {origin: len(image.imported_from(origin)) for origin in sorted(set(image.imports.values()))}
            print(f"{name}: {counts}, {len(mlx)} MLX wheels, {len(wrong)} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
