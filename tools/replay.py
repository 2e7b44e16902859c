"""Replay decode fixtures (tools/oracle/decode/README.md) through the C++ sampler and decode loops.

    python tools/replay.py FILE.jsonl[.gz] ...

Every record counts once, whatever its salt; an unknown kind, field or gate fails. Compared: what
tools/oracle/decode/replay.py compares. Prints `N passed, M failed`; exit code 1 on failure.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
IN_PLACE = Path(__file__).resolve().parent.parent / "python"
if any((IN_PLACE / "qwenmtp").glob("_core*.so")):
    sys.path.insert(0, str(IN_PLACE))
from replay_loops import replay_resume, replay_run  # noqa: E402
from replay_record import Record  # noqa: E402
from replay_sampler import (  # noqa: E402
    replay_accept,
    replay_batched,
    replay_block,
    replay_edge,
    replay_keyed,
    replay_non_finite,
    replay_pcg64,
    replay_row,
)

SHOWN_FAILURES = 5


KINDS: dict[str, Callable[[Record], None]] = {
    "target": replay_row,
    "draft_fixed": replay_row,
    "draft_relaxed": replay_row,
    "batched_rows": replay_batched,
    "accept_residual": replay_accept,
    "point_mass_block": replay_block,
    "edge": replay_edge,
    "non_finite": replay_non_finite,
    "pcg64": replay_pcg64,
    "keyed": replay_keyed,
    "ar": replay_run,
    "mtp": replay_run,
    "resume": replay_resume,
}


def check(record: Record) -> str | None:
    """None, or why the record does not replay."""
    replay = KINDS.get(record.get("kind", ""))
    if replay is None:
        return f"unknown kind {record.get('kind')}"
    try:
        replay(record)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def read(path: Path) -> Iterator[Record]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def main(paths: list[str]) -> int:
    passed = failed = 0
    for path in paths:
        shown = 0
        for number, record in enumerate(read(Path(path)), 1):
            reason = check(record)
            passed += reason is None
            failed += reason is not None
            if reason is not None and shown < SHOWN_FAILURES:
                shown += 1
                print(f"{path}:{number} {record.get('id')}: {reason[:600]}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
