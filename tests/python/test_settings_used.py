"""Every field of the settings does something: some code outside the settings reads it.

The scan follows `<anything>.<group>.<field>`, and names that stand for a group: assigned from `<anything>.<group>` or
from such a name, alone or in a tuple, as attributes of self too, or parameters annotated with the group's class.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from qwenmtp.settings_table import FIELDS, GROUPS

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "qwenmtp"
CLASSES = {cls.__name__: group for group, cls in GROUPS.items()}


def key(node: ast.AST) -> str | None:
    """`x` of the name x, `self.x` of that attribute."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    return None


def assignments(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Every (name, value) of a module's assignments, tuples taken apart."""
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            paired = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=True) if paired else [(target, node.value)]
            yield from ((key(name), value) for name, value in pairs if key(name))


def aliases(tree: ast.AST) -> dict[str, set[str]]:
    """Names that stand for a group somewhere in a module, with the groups they stand for."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name) and node.annotation.id in CLASSES:
            found[node.arg].add(CLASSES[node.annotation.id])
    for _ in range(2):  # an alias of an alias
        for name, value in assignments(tree):
            if isinstance(value, ast.Attribute) and value.attr in GROUPS:
                found[name].add(value.attr)
            found[name] |= found[key(value) or ""]
    return found


def fields_read(source: str) -> set[str]:
    """Dotted names of the fields that a module reads."""
    tree = ast.parse(source)
    known, read = aliases(tree), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            groups = known.get(key(node.value) or "", set())
            if isinstance(node.value, ast.Attribute) and node.value.attr in GROUPS:
                groups = {*groups, node.value.attr}
            read |= {f"{group}.{node.attr}" for group in groups}
    return read & set(FIELDS)


def test_every_field_is_read_by_some_code() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if not path.name.startswith("settings")]
    read = set().union(*(fields_read(path.read_text()) for path in modules))
    assert set(FIELDS) == read


def test_the_scan_sees_what_it_should() -> None:
    assert fields_read("a.settings.ple.threads") == {"ple.threads"}
    assert fields_read("p, m = s.ple, s.memory\nf(p.threads, m.limit, p.nothing)") == {"ple.threads", "memory.limit"}
    assert fields_read("self.s = e.checkpoint\nt = self.s\nt.mode") == {"checkpoint.mode"}
    assert fields_read("def f(p: PleSettings):\n    return p.staging") == {"ple.staging"}
    assert fields_read("s.ple.threads = 1\nt.threads\nple.threads\nx = s.ple") == set()
