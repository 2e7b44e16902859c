"""Lets tests share modules; watches where qwenmtp makes its errors: a whole run can say which places none reached."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import qwenmtp
from qwenmtp import errors

sys.path.insert(0, str(Path(__file__).parent))  # `oracle`, `kernels.launch`, `msl.harness`, from any room's tests
PACKAGE = Path(qwenmtp.__file__).parent
REACHED: set[tuple[str, int]] = set()  # file below python/qwenmtp, line
_made = errors.QwenMtpError.__init__


def _recording(self: errors.QwenMtpError, *args: Any, **kwargs: Any) -> None:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == errors.__file__:
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(PACKAGE):
        REACHED.add((str(path.relative_to(PACKAGE)), frame.f_lineno))
    _made(self, *args, **kwargs)


errors.QwenMtpError.__init__ = _recording  # type: ignore[method-assign]


def error_sites() -> dict[str, range]:
    """Every place in the package that makes an error, as "file:line", with the lines it spans."""
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)} | {"from_code"}
    sites = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "errors.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", None)) in classes:
                name = str(path.relative_to(PACKAGE))
                sites[f"{name}:{node.lineno}"] = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return sites


@pytest.fixture(scope="session")
def unreached_sites() -> list[str]:
    """Places that have made no error so far in this run."""
    return [
        site
        for site, lines in error_sites().items()
        if not any((site.rpartition(":")[0], line) in REACHED for line in lines)
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--raise-sites", action="store_true", help="end with the places that made no error in this run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The test of the sites goes last, and only where it was asked for: a part of the suite reaches a part of them."""
    last = [item for item in items if "unreached_sites" in getattr(item, "fixturenames", ())]
    items[:] = [item for item in items if item not in last] + (last if config.getoption("--raise-sites") else [])
