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

    With rich (extra `cli`) it also shows the time left and fits the width of the terminal.

    Args:
        label: What is going on.
        stream: Where to; stderr by default.
    """

    def __init__(self, label: str, stream: TextIO | None = None):
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty() and not dumb_terminal()
        self._bar: _Bar | _RichBar | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the line away."""
        if self._bar:
            self._bar.clear()
            self._bar = None

    def __call__(self, done: int, total: int) -> None:
        """Show `done` of `total`."""
        if not self._live or total <= 0:
            return
        if self._bar is None:
            try:
                self._bar = _RichBar(self._label, self._stream)
            except ImportError:
                self._bar = _Bar(self._label, self._stream)
        self._bar.show(min(done / total, 1.0))


class _Bar:
    def __init__(self, label: str, stream: TextIO):
        self._label, self._stream = label, stream

    def show(self, share: float) -> None:
        filled = round(share * 30)
        self._write(f"\r{self._label} {'#' * filled}{'.' * (30 - filled)} {share:4.0%}")

    def clear(self) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _RichBar:
    """rich's own; its thread redraws it ten times a second. ImportError without rich."""

    def __init__(self, label: str, stream: TextIO):
        from rich.console import Console
        from rich.progress import Progress

        console = Console(file=stream, force_terminal=True, no_color=not colour_wanted())
        self._progress = Progress(console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._task = self._progress.add_task(label, total=1.0)

    def show(self, share: float) -> None:
        self._progress.update(self._task, completed=share)
        self._progress.start()

    def clear(self) -> None:
        self._progress.stop()


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
