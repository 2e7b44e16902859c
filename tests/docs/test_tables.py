"""tools/docs/tables.py: every generated table of docs/ is the committed one."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "tools" / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load_tables()


def test_committed_tables_equal_the_generated_ones() -> None:
    for path, text in tables.pages().items():
        assert path.read_text() == text, f"{path}: run python tools/docs/tables.py"


@pytest.mark.parametrize("page", ["<!-- table: y -->\n\n<!-- end -->", "<!-- table: x -->\nno end"])
def test_a_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="no markers for table x"):
        tables.with_table(page, "x", "t")


def test_only_the_named_table_is_replaced() -> None:
    page = "a\n<!-- table: x -->\nold\n<!-- end -->\nb\n<!-- table: y -->\nkept\n<!-- end -->\n"
    assert tables.with_table(page, "x", "new") == page.replace("old", "new")
