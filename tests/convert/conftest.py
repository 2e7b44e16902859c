"""The release that every test of `convert` reads."""

import shutil
from pathlib import Path

import pytest
from convert.release import GOLDEN, make_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of the goldens; tests do not write into it."""
    folder = tmp_path_factory.mktemp("tiny") / "release"
    make_tiny.make(folder, **GOLDEN["make"])
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "README.md").write_text("of the release")
    return folder


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(tiny, tmp_path / "release"))
