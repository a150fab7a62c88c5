"""The page as a file: what is in it is the page's own, and nothing of the data is markup or script."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import hostile

from gemmdb.errors import InputError
from gemmdb.report import documents, page
from gemmdb.settings import shipped_tables
from gemmdb.table.catalog import Catalog

needs_plotly = pytest.mark.skipif(
    importlib.util.find_spec("plotly") is None, reason="plotly is not installed: pip install 'gemmdb[report]'"
)
TEXTS = st.text() | st.sampled_from(["</script>", "<!--", "&lt;", "\u2028\u2029", "\ud800", "]]>"])
JSON = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
)


@pytest.fixture
def catalog() -> Iterator[Catalog]:
    found = Catalog(())
    yield found
    found.close()


class Elements(HTMLParser):
    """The elements of a page, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: dict[str, dict[str, str | None]] = {}
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.setdefault(dict(attrs).get("http-equiv") or tag, dict(attrs))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"] and not data.isspace():
            self.scripts[-1] += data


OWN = sorted(
    ["html", "head", *["meta"] * 6, "title", "style", "body", "header", "main", "noscript", "footer", *["script"] * 3]
)


@needs_plotly
@pytest.mark.parametrize("make", [hostile.table, hostile.workload, hostile.comparison])
def test_nothing_of_a_hostile_file_is_markup(catalog: Catalog, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    document = documents.document(make(tmp_path), catalog)
    text = page.render(document)
    found = Elements(text)
    assert sorted(found.tags) == OWN
    assert len(re.findall("</script", text, re.IGNORECASE)) == 3
    assert json.loads(found.scripts[0]) == json.loads(json.dumps(document))
    assert hostile.ATTACK in json.dumps(document).encode().decode("unicode_escape")
    text.encode("utf-8")


@needs_plotly
def test_the_policy_allows_the_pages_own_scripts_and_no_connection(catalog: Catalog, tmp_path: Path) -> None:
    found = Elements(page.render(documents.document(hostile.table(tmp_path), catalog)))
    policy = str(found.attributes["Content-Security-Policy"]["content"])
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules, "default-src forbids it"
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in found.scripts[1:]]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]


@given(JSON)
def test_embedded_json_has_no_markup_and_is_the_same_data(data: Any) -> None:
    text = page.embedded({"x": data})
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"x": data}
    with pytest.raises(ValueError, match="JSON"):
        page.embedded({"x": data, "y": float("nan")})


def test_the_own_scripts_make_no_markup() -> None:
    for name in page.SCRIPTS:
        text = (page.HERE / name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|fetch\(|https?://", text
        ), name


@needs_plotly
def test_the_page_of_the_shipped_table_stays_below_8_mib(catalog: Catalog) -> None:
    text = page.render(documents.document(shipped_tables() / "sm90-nvidia-h200.db", catalog))
    assert len(text.encode()) < 8 * 2**20


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    assert page.write("text\n", tmp_path / "x.html") == 5
    with pytest.raises(InputError, match="none is not a folder"):
        page.write("text", tmp_path / "none" / "x.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder is a folder"):
        page.write("text", tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "x.html"]
