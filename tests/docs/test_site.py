"""The site: every page is in its navigation, and every link and picture of a page leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, as Markdown renderers make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}"


def test_every_page_is_in_the_navigation_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"([\w-]+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == sorted(p.name for p in DOCS.glob("*.md"))


@pytest.mark.parametrize("word", ["round", "primary", "draft", "commit", "pending"])
def test_every_concept_has_its_picture(word: str) -> None:
    text = (DOCS / "concepts.md").read_text()
    assert f"## {word.capitalize()}\n" in text
    assert f"(pictures/{word}.svg)" in text
