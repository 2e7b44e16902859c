"""Results as PNG files; needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qwenmtp.bench.timing import BenchResult
from qwenmtp.errors import InvalidRequest


def bars(path: Path, title: str, results: Sequence[BenchResult]) -> None:
    """Rate of each case at the median, its whisker from the slowest to the fastest repetition."""
    figure, axes = _figure(title)
    names = [f"{r.name}\n{r.shape}" for r in results]
    rates = [r.rate for r in results]
    whiskers = [
        [r.rate - r.work / r.worst for r in results],
        [r.work / r.best - r.rate for r in results],
    ]
    axes.barh(names, rates, xerr=whiskers, capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel(f"{results[0].unit}/s")
    _save(path, figure)


def lines(path: Path, title: str, x: str, y: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Points of each series, joined by a line."""
    figure, axes = _figure(title)
    for name, points in series.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.legend()
    _save(path, figure)


def _figure(title: str) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidRequest("[bench.plot] matplotlib is missing, expected `pip install qwenmtp[bench]`") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def _save(path: Path, figure: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
