"""The site: it builds without a warning, loads nothing from elsewhere, and shows what the documents say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from kit.site import build

from tools import site

pytest.importorskip("material", reason="pip install 'gemmdb[docs]'")

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
DOCUMENTS = sorted(path for path in site.reached(SOURCES) if path.suffix == ".md")
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}
"""What a browser loads with a page: the tags and their attributes."""


class Page(HTMLParser):
    """What the tests ask of a page: what it loads, and how many blocks of code and items of lists it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: dict[str, int] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count the tag, and keep what it loads."""
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag in LOADED:
            self.loads.append(dict(attrs).get(LOADED[tag]) or "")


def html_of(document: Path, folder: Path) -> Path:
    """The page of a document. README.md is the index of its folder."""
    path = folder / site.address(document)
    return path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html")


def test_a_page_outside_the_navigation_fails_the_build(tmp_path: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    docs, hook = ROOT / "docs", ROOT / "tools" / "site.py"
    text = text.replace("docs_dir: docs", f"docs_dir: {docs}").replace("[tools/site.py]", f"[{hook}]")
    (tmp_path / "mkdocs.yml").write_text(re.sub(r" +- Architecture: .*\n", "", text))
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "architecture.md" in done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_document_is_a_page_with_all_its_code_and_lists(built: Path, document: Path) -> None:
    """Python-Markdown and GitHub differ in what begins a list or a block of code; they agree on these documents."""
    page = Page(html_of(document, built).read_text())
    fences = re.findall(r"^ *```\w* ?.*$", document.read_text(), re.MULTILINE)
    prose = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    items = re.findall(r"^ *(?:[-*]|\d+\.) \S", prose, re.MULTILINE)
    assert page.tags.get("pre", 0) >= len(fences) // 2
    assert page.tags.get("li", 0) >= len(items)
    assert "```" not in re.sub(r"<pre>.*?</pre>", "", html_of(document, built).read_text(), flags=re.DOTALL)
    assert re.findall(r"^ {1,3}(?:[-*]|\d+\.) \S", prose, re.MULTILINE) == [], "indent a list in a list by four"


def test_no_page_loads_anything_from_elsewhere(built: Path) -> None:
    pages = sorted(built.rglob("*.html"))
    assert len(pages) > len(DOCUMENTS) // 2
    loads = {(path.name, address) for path in pages for address in Page(path.read_text()).loads}
    assert {(name, address) for name, address in loads if re.match(r"(\w+:)?//", address)} == set()


def test_a_link_between_places_of_the_repository_leads_to_the_page() -> None:
    guide = ROOT / "CONTRIBUTING.md"
    assert site.relinked("[a](docs/contributing/origins.md#x) [b](https://x.org/y.md)", guide) == (
        "[a](contributing/origins.md#x) [b](https://x.org/y.md)"
    )
    assert site.relinked("[a](../examples/aot.py)", ROOT / "docs/cli.md") == "[a](examples/aot.py)"
    assert site.relinked("[a](../../README.md)", ROOT / "docs/contributing/gpu.md") == "[a](../README.md)"
    assert site.relinked("[a](../examples)", ROOT / "docs/cli.md") == "[a](examples/README.md)"
