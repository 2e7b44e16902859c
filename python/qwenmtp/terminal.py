"""What the command line shows a person: progress and colour on a terminal, tables, nothing of it on pipes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

from qwenmtp.settings import colour_wanted, dumb_terminal

_COLOURS = {"red": 31, "green": 32}


def painted(text: str, colour: str, stream: TextIO | None = None) -> str:
    """The text in a colour where `stream` (default: stdout) is a terminal and the user has not refused colour."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty() or not colour_wanted():
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


class ProgressLine:
    """One line on stderr that shows how far something has come; silent unless stderr is a terminal.

    Args:
        label: What is going on.
        stream: Where to; stderr by default.
    """

    def __init__(self, label: str, stream: TextIO | None = None):
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._shown = False
        self._live = self._stream.isatty() and not dumb_terminal()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False

    def __call__(self, done: int, total: int) -> None:
        """Show `done` of `total`."""
        if not self._live or total <= 0:
            return
        share = min(done / total, 1.0)
        filled = round(share * 30)
        self._stream.write(f"\r{self._label} {'#' * filled}{'.' * (30 - filled)} {share:4.0%}")
        self._stream.flush()
        self._shown = True


def table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    """Rows as aligned text; columns of numbers to the right."""
    text = [[str(c) for c in row] for row in rows]
    widths = [max(len(r[i]) for r in [list(head), *text]) for i in range(len(head))]
    numeric = [all(isinstance(r[i], (int, float)) for r in rows) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        placed = (c.rjust(w) if right else c.ljust(w) for c, w, right in zip(cells, widths, numeric, strict=True))
        return "  ".join(placed).rstrip()

    return "\n".join([line(list(head)), line(["-" * w for w in widths]), *map(line, text)])


def human_bytes(n: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"
