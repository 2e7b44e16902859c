"""`qwenmtp convert`: its arguments, and a run that SIGTERM and SIGHUP stop as cleanly as Ctrl-C."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from qwenmtp.convert.pack import ConvertReport, Progress, convert
from qwenmtp.convert.recipe import BUILT_IN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own arguments."""
    parser.add_argument("src", metavar="SRC", help="folder of the released checkpoint, bf16 or FP8")
    parser.add_argument("dst", metavar="DST", help="folder of the pack; must not exist")
    parser.add_argument(
        "--recipe",
        metavar="R",
        default="optimized-speed",
        help=f"{', '.join(BUILT_IN)} or a recipe file (docs/packs.md)",
    )


def run(args: argparse.Namespace, progress: Progress | None = None) -> ConvertReport:
    """Runs the command on the main thread; errors and KeyboardInterrupt are the caller's to show."""
    with _signals_interrupt():
        return convert(args.src, args.dst, args.recipe, progress=progress)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Within, a request to terminate raises KeyboardInterrupt, so that what was begun is removed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
