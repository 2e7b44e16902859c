"""This engine: `own.py CHECKPOINT WORK`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from worker import Stream, serve

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))  # behind an installed one
import qwenmtp

MORE_THAN_ASKED = 4096


def opened(path: Path) -> Stream:
    model = qwenmtp.load(path)

    def stream(ids: list[int]) -> Iterator[int]:
        session = model.session(mode="ar")
        greedy = qwenmtp.SamplingParams(temperature=0)
        for r in session.generate(ids, greedy, max_tokens=MORE_THAN_ASKED, ignore_stop=True):
            yield from r.ids

    return stream


def main() -> None:
    checkpoint = Path(sys.argv[1])
    forms = {"bf16 weights, float32": lambda: opened(checkpoint)}
    pack = Path(__file__).resolve().parents[2] / "models" / "demo"
    if checkpoint.name == "demo-model":
        forms["8-bit pack, float32"] = lambda: opened(pack)
    serve(qwenmtp.__version__, forms)


if __name__ == "__main__":
    main()
