#!/usr/bin/env python3
"""Is this wheel what it says, and nothing more? `python tools/wheels/check_wheel.py WHEEL...`

Refuses a RECORD that does not match, a file outside the package, anything that only tests may have (the test extension,
scripted logits, fault hooks, the keyed sampler), and a Linux module that asks for more than its manylinux tag promises.
Knows no Mach-O: check_macho.py does.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Test-only code as it would show in a file's name, a Python source, a binding's string or a mangled C++ name.
TEST_ONLY = (b"qwenmtp_testing", b"7qwenmtp7testing", b"scripted", b"faulty", b"keyedsampler", b"keyed_sampler")
ALLOWED = re.compile(r"qwenmtp/(\w+/)*(\w+\.pyi?|py\.typed|_core\.[\w-]+\.so)|qwenmtp-[\w.]+\.dist-info/.+")

# What manylinux_2_35 promises of each library: newest symbol versions of Ubuntu 22.04 (PEP 600; auditwheel's policy).
MANYLINUX = {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
LIBRARIES = {"libmlx.so", "libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0"}
LOADERS = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
RUNPATH = "$ORIGIN/../mlx/lib"


def record_faults(wheel: zipfile.ZipFile) -> list[str]:
    """Differences between RECORD and the files."""
    names = {name for name in wheel.namelist() if not name.endswith("/")}
    record = next((name for name in names if name.endswith(".dist-info/RECORD")), None)
    if record is None:
        return ["no RECORD"]
    rows = {row[0]: row[1:] for row in csv.reader(wheel.read(record).decode().splitlines())}
    found = [f"{name} is not in RECORD" for name in sorted(names - set(rows))]
    found += [f"RECORD names {name}, which is missing" for name in sorted(set(rows) - names)]
    for name in sorted(names & set(rows) - {record}):
        data = wheel.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if rows[name] != [f"sha256={digest}", str(len(data))]:
            found.append(f"{name} is not what RECORD says")
    return found


def content_faults(wheel: zipfile.ZipFile) -> list[str]:
    """Files that do not belong, modules missing or doubled, and what only tests may have."""
    names = [name for name in wheel.namelist() if not name.endswith("/")]
    found = [f"{name} does not belong in a wheel" for name in names if not ALLOWED.fullmatch(name)]
    modules = [name for name in names if name.endswith((".so", ".dylib", ".pyd"))]
    if len(modules) != 1:
        found.append(f"modules {modules}, expected the core alone")
    for name in names:
        if not name.endswith(".dist-info/METADATA"):  # the README, which may speak of tests; RECORD has the names
            data = wheel.read(name).lower()
            found += [f"{name} holds {word.decode()!r}" for word in TEST_ONLY if word in data]
    return found


def elf_faults(text: str, tag: str) -> list[str]:
    """What a Linux module asks for beyond its tag; `text` is `readelf -dVW` of it."""
    found = []
    if not tag.startswith("manylinux_2_35_"):
        found.append(f"tag {tag}, expected manylinux_2_35")
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))
    if "libmlx.so" not in needed or needed - LIBRARIES - LOADERS:
        found.append(f"libraries {sorted(needed)}, expected libmlx and of {sorted(LIBRARIES)}")
    paths = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.+)\]", text)
    if paths != [RUNPATH]:
        found.append(f"run path {paths}, expected {RUNPATH}")
    for family, version in sorted(set(re.findall(r"Name: ([A-Z]+)_([\d.]+)\s", text))):
        if tuple(map(int, version.split("."))) > MANYLINUX.get(family, ()):
            found.append(f"{family}_{version} is newer than {tag} promises")
    return found


def faults(path: Path) -> list[str]:
    """Everything wrong with a wheel, one sentence each."""
    with zipfile.ZipFile(path) as wheel:
        found = record_faults(wheel) + content_faults(wheel)
        tag = path.stem.split("-")[-1]
        if "linux" in tag:
            with tempfile.TemporaryDirectory() as folder:
                for name in wheel.namelist():
                    if name.endswith(".so"):
                        module = wheel.extract(name, folder)
                        text = subprocess.check_output(["readelf", "-dVW", module], text=True)
                        found += elf_faults(text, tag)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, nargs="+")
    bad = 0
    for path in parser.parse_args().wheel:
        wrong = faults(path)
        bad += len(wrong)
        print("".join(f"{path.name}: {fault}\n" for fault in wrong), end="")
        print(f"{path.name}: {path.stat().st_size:,} bytes, {len(wrong)} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
