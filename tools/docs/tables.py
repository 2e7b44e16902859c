"""Writes the generated tables of docs/: `python tools/docs/tables.py` rewrites them, a test compares them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import qwenmtp
from qwenmtp import cli, completion, errors
from qwenmtp.commands import COMMANDS
from qwenmtp.settings_legacy import CLASSES, LEGACY, NO_EFFECT
from qwenmtp.settings_table import FIELDS
from qwenmtp.settings_values import BOOL, SIZE

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


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


def remedies_table() -> str:
    """One row for each code: what it means and what to do."""
    rows = ((f"`{row.code}`", row.meaning, errors.REMEDIES[row.code]) for row in errors.CODES.values())
    return markdown(("code", "what happened", "what to do"), rows)


def api_reference() -> str:
    """One section for each public name, from its signature and docstring."""
    sections = []
    for name in qwenmtp.__all__:
        value = getattr(qwenmtp, name)
        if name == "__version__" or (isinstance(value, type) and issubclass(value, errors.QwenMtpError)):
            continue
        sections.append(f"## {name}\n\n{_member(name, value)}")
        for member, inner in sorted(vars(value).items()) if isinstance(value, type) else ():
            function = inner.fget if isinstance(inner, property) else getattr(inner, "__func__", inner)
            if not member.startswith("_") and inspect.isfunction(function) and function.__doc__:
                called = member if isinstance(inner, property) else f"{member}()"
                sections.append(f"### {name}.{called}\n\n{_member(member, function, isinstance(inner, property))}")
    return "\n\n".join(sections)


def _member(name: str, value: object, is_property: bool = False) -> str:
    """Signature and docstring; the sections of a Google docstring become lists."""
    lines = []
    for line in (inspect.getdoc(value) or "").splitlines():
        if section := re.fullmatch(r"(Args|Returns|Raises|Attributes|Yields):", line):
            lines += [f"**{section[1]}**", ""]
        elif field := re.fullmatch(r"    (\S.*?): (.+)", line):
            lines.append(f"- `{field[1]}`: {field[2]}")
        else:
            lines.append(line.replace("        ", "  ", 1) if line.startswith("        ") else line.strip())
    text = "\n".join(lines)
    if is_property or not (inspect.isfunction(value) or dataclasses.is_dataclass(value) or name == "SessionBank"):
        return text
    signature = inspect.signature(value)
    shown = [str(p) for p in signature.parameters.values() if p.name not in ("self", "cls")]
    shown = [re.sub(r": '(.*?)'( = .*)?$", r": \1\2", p) for p in shown]  # annotations are kept as text
    result = "" if signature.return_annotation in (signature.empty, "None") else f" -> {signature.return_annotation}"
    one = f"{name}({', '.join(shown)}){result}"
    many = f"{name}(\n    " + ",\n    ".join(shown) + f",\n){result}"
    return f"```py\n{one if len(one) < 100 else many}\n```\n\n{text}"


def settings_table() -> str:
    """One row for each setting."""
    rows = []
    for spec in FIELDS.values():
        legacy = ", ".join(f"`{row.name}` ({row.letter})" for row in LEGACY.values() if row.field == spec.name)
        accepted = spec.kind.accepted.replace(BOOL.accepted, "on or off").replace(SIZE, "a size")
        rows.append((f"`{spec.name}`", accepted, _default(spec.default), f"`{spec.env}`", legacy, spec.doc))
    return markdown(("field", "accepted", "default", "`QWENMTP_`", "`MTPLX_` (class)", "meaning"), rows)


def _default(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value >= 2**20:
        unit, bits = ("GiB", 30) if value % 2**30 == 0 else ("MiB", 20)
        return f"{value >> bits} {unit}"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def legacy_classes_table() -> str:
    """What each class of MTPLX_* reading takes a text for."""
    return markdown(("class", "text"), ((letter, text) for letter, text in CLASSES.items()))


def no_effect_table() -> str:
    """One row for each reason, with the variables it holds for."""
    reasons: dict[str, list[str]] = {}
    for name, reason in NO_EFFECT.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    return markdown(("`MTPLX_`", "why"), ((", ".join(names), reason) for reason, names in reasons.items()))


def server_policy_table() -> str:
    """One row for each of the 33 variables of the reference server's policy."""
    cases = json.loads((ROOT / "tests" / "golden" / "settings" / "server_policy.json").read_text())["cases"]
    counts: dict[str, int] = {}
    for case in cases:
        for name in case["env"]:
            counts[name.removeprefix("MTPLX_")] = counts.get(name.removeprefix("MTPLX_"), 0) + 1
    rows = []
    for name, count in counts.items():
        if count != 8:  # four texts in two modes; the obsolete flag has two
            continue
        here = f"`{LEGACY[name].field}`" if name in LEGACY else f"no effect: {NO_EFFECT[name]}"
        rows.append((f"`{name}`", here, f"{count} equal" if name in LEGACY else f"{count} change nothing"))
    return markdown(("`MTPLX_`", "here", "cases"), rows)


def cli_reference() -> str:
    """One section for each command: what it does, its arguments, its examples."""
    parsers = completion.subparsers(cli.parser())
    sections = []
    for command in COMMANDS:
        rows = []
        for action in completion.actions(parsers[command.name]):
            value = "" if action.nargs == 0 else action.metavar or "|".join(map(str, action.choices or ()))
            form = " ".join([", ".join(action.option_strings), str(value)]).strip()
            shown = (action.help or "") % {"default": action.default}
            rows.append((f"`{form}`" + (" (required)" if action.required and action.option_strings else ""), shown))
        examples = "\n".join(command.examples)
        head = f"## qwenmtp {command.name}\n\n{command.summary}"
        sections.append(f"{head}\n\n```sh\n{examples}\n```\n\n{markdown(('argument', 'meaning'), rows)}")
    return "\n\n".join(sections)


# Page and marker of each table. A page holds `<!-- table: NAME -->`, the table, `<!-- end -->`.
TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("api.md", "names"): api_reference,
    ("cli.md", "commands"): cli_reference,
    ("troubleshooting.md", "remedies"): remedies_table,
    ("errors.md", "errors"): errors_table,
    ("settings.md", "settings"): settings_table,
    ("settings.md", "classes"): legacy_classes_table,
    ("settings.md", "no effect"): no_effect_table,
    ("settings.md", "server policy"): server_policy_table,
}


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
