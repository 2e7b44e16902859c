"""Writes the generated tables of docs/: `python tools/docs/tables.py` rewrites them, a test compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from qwenmtp import errors

DOCS = Path(__file__).resolve().parents[2] / "docs"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a cell's bars are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def errors_table() -> str:
    """One row for each code of `qwenmtp.errors`."""
    rows = []
    for row in errors.CODES.values():
        hint = "-" if row.http_hint is None else str(row.http_hint)
        name = errors.class_of(row.code).__name__
        rows.append(
            (f"`{row.code}`", f"`{name}`", row.meaning, hint, "yes" if row.retryable else "no", row.session_after)
        )
    return markdown(("code", "class", "meaning", "HTTP", "retry", "session after"), rows)


# Page and marker of each table. A page holds `<!-- table: NAME -->`, the table, `<!-- end -->`.
TABLES: dict[tuple[str, str], Callable[[], str]] = {("errors.md", "errors"): errors_table}


def with_table(text: str, name: str, table: str) -> str:
    """The page with the text between the markers of `name` replaced."""
    opening, closing = f"<!-- table: {name} -->\n", "\n<!-- end -->"
    head, found, rest = text.partition(opening)
    _, ended, tail = rest.partition(closing)
    if not found or not ended:
        raise ValueError(f"no markers for table {name}")
    return head + opening + table + closing + tail


def pages() -> dict[Path, str]:
    """Every page that holds a table, as it should read."""
    out: dict[Path, str] = {}
    for (page, name), table in TABLES.items():
        path = DOCS / page
        out[path] = with_table(out.get(path) or path.read_text(), name, table())
    return out


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
