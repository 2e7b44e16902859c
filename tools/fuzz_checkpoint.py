"""Mutates small checkpoint files and reads them with the core: no crash, no tensor memory before the header is
accepted, never a wrong state.

    python tools/fuzz_checkpoint.py 200000 [--seed 0] [--seconds 3600]

The nightly run takes the test extension of the asan preset:

    cmake --preset asan -DQWENMTP_IN_PLACE=OFF && cmake --build --preset asan --target _qwenmtp_testing
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)" \\
        ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 PYTHONPATH=build/asan \\
        python tools/fuzz_checkpoint.py 200000
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "python"))  # behind PYTHONPATH, which may name a build of its own
ORACLE = ROOT / "tests" / "oracle" / "qwmtkv02.py"
MAX_BYTES = 256 << 10
# Reasons that can only be found after tensors were read.
LATE = {"payload_crc", "payload_hash", "padding", "short_read", "changed"}
# What a forger with the digest on his side may choose, ids within the vocabulary, boundaries within 1..N.
FORGEABLE = {"created_ns", "writer_id", "meta", "finish", "ids", "boundaries"}
NUMBERS = (0, 1, 2, 3, 7, 8, 255, 256, 0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1)


def load_oracle() -> ModuleType:
    spec = importlib.util.spec_from_file_location("qwmtkv02", ORACLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seeds(oracle: ModuleType) -> list[tuple[dict[str, Any], dict[str, Any], bytes]]:
    """(geometry, head, file) of lawful states, each at most 256 KiB."""
    flat = {**oracle.TINY, "layers": ["gdn", "qsa"]}
    cases = [
        (oracle.TINY, 13, "mtp", []),
        (oracle.TINY, 5, "ar", [4]),
        (oracle.TINY, 1, "mtp", []),
        (flat, 9, "mtp", [8]),
        (flat, 200, "ar", [1, 100, 200]),
    ]
    out = []
    for i, (geometry, n, mode, boundaries) in enumerate(cases):
        head, data = oracle.random_state(geometry, n, mode=mode, boundaries=boundaries, seed=i)
        file = oracle.encode(geometry, head, data, hashes=i == 3)
        assert len(file) <= MAX_BYTES
        out.append((geometry, head, file))
    return out


def mutate(rng: random.Random, oracle: ModuleType, good: bytes) -> tuple[bytes, bool]:
    """A changed file, and whether its header digest was made to fit."""
    file = bytearray(good)
    header = struct.unpack_from("<Q", good, 24)[0]
    kind = rng.randrange(7)
    if kind == 0:  # bits anywhere
        for _ in range(rng.choice((1, 1, 2, 8))):
            file[rng.randrange(len(file))] ^= 1 << rng.randrange(8)
    elif kind == 1:  # a run of bytes
        at, n = rng.randrange(len(file)), rng.choice((1, 8, 64, 4096))
        file[at : at + n] = rng.choice((bytes, rng.randbytes))(len(file[at : at + n]))
    elif kind == 2:  # length
        cut = rng.choice((rng.randrange(len(file)), rng.randrange(header), rng.randrange(300)))
        file = file[:cut] if rng.random() < 0.7 else file + rng.randbytes(rng.choice((1, 64, 16384)))
    elif kind == 3:  # two pages change places
        a, b = (16384 * rng.randrange(len(file) // 16384) for _ in range(2))
        file[a : a + 16384], file[b : b + 16384] = file[b : b + 16384], file[a : a + 16384]
    elif kind == 4:  # padding
        offset, size = rng.choice(oracle.extents(good))
        end = oracle.round_up(offset + size)
        if end > offset + size:
            file[rng.randrange(offset + size, end)] = rng.randrange(1, 256)
    else:  # forged numbers under a fitting digest
        for _ in range(rng.choice((1, 1, 2, 3))):
            start, size = rng.choice(((8, 248), (256, 160), *(oracle.section(good, tag) for tag in oracle.TAGS)))
            if size == 0:
                continue
            width = rng.choice((1, 2, 4, 8))
            at = min(start + rng.randrange(size) // width * width, header - width)
            old = int.from_bytes(file[at : at + width], "little")
            new = rng.choice((rng.choice(NUMBERS), old + 1, old - 1, old ^ (1 << rng.randrange(8 * width)), 2 * old))
            file[at : at + width] = (new % (1 << (8 * width))).to_bytes(width, "little")
        claimed = struct.unpack_from("<Q", file, 24)[0]
        if claimed <= len(file):
            return oracle.redigest(file), True
    return bytes(file), False


def fuzz(core: ModuleType, n_cases: int, seed: int, seconds: float = float("inf")) -> Counter[str]:
    """Reads n_cases mutated files. Returns counts by outcome and reason; raises AssertionError on a wrong answer."""
    from qwenmtp.errors import CheckpointError

    oracle, rng, counts = load_oracle(), random.Random(seed), Counter[str]()
    cases = seeds(oracle)
    deadline = time.monotonic() + seconds
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        dir_fd = os.open(folder, os.O_RDONLY)
        originals = []
        fd = os.open(Path(folder) / "f", os.O_RDWR | os.O_CREAT, 0o600)
        for geometry, _, good in cases:
            os.ftruncate(fd, 0)
            os.pwrite(fd, good, 0)
            originals.append(core.checkpoint_read(dir_fd, "f", geometry))
        for case in range(n_cases):
            if time.monotonic() > deadline:
                break
            which = rng.randrange(len(cases))
            geometry, head, good = cases[which]
            file, forged = mutate(rng, oracle, good)
            os.ftruncate(fd, len(file))
            os.pwrite(fd, file, 0)
            before = core.checkpoint_allocated_bytes()
            with_model = rng.random() < 0.7
            try:
                got = core.checkpoint_read(
                    dir_fd, "f", geometry if with_model else None, head["identity"], head["owner"]
                )
            except CheckpointError as e:
                asked = core.checkpoint_allocated_bytes() - before
                reason = e.details["reason"]
                assert asked == 0 or (reason in LATE and asked <= MAX_BYTES), (seed, case, reason, asked)
                counts[f"{e.outcome}/{reason}"] += 1
                continue
            if forged:
                want = {k: v for k, v in originals[which].items() if k not in FORGEABLE}
                assert max(got["ids"]) < geometry["vocab"], (seed, case)
                assert {k: got[k] for k in want} == want, (seed, case)
            else:
                assert file == good, (seed, case)
            counts["accepted/" + ("forged" if forged else "unchanged")] += 1
        os.close(fd)
        os.close(dir_fd)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop early")
    args = parser.parse_args()
    import _qwenmtp_testing as core

    counts = fuzz(core, args.cases, args.seed, args.seconds)
    json.dump({"cases": counts.total(), "seed": args.seed, "counts": dict(counts.most_common())}, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
