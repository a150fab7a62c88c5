"""The page as a file: what is in it is the page's own, and nothing of the data is markup or script."""

from __future__ import annotations

import base64
import hashlib
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
from kit.devices import H200

from gemmdb.errors import InputError
from gemmdb.key.problem import Problem
from gemmdb.report import documents, page
from gemmdb.settings import shipped_tables
from gemmdb.table.catalog import Catalog
from gemmdb.workload.entries import Entry, Origin

ROOT = Path(__file__).parents[2]
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


LIMIT = 2.5 * 2**20


def test_pages_stay_below_the_limit(catalog: Catalog, tmp_path: Path) -> None:
    for path in shipped_tables().glob("*.db"):
        assert len(page.render(documents.document(path, catalog)).encode()) < LIMIT, path
    text = Problem.gemm("addmm", m=1, n=4096, k=4096, fusion="pointwise").resized
    origins = tuple(
        Origin(f"model.layers.{layer}.mlp.gate_up_projection", "models/serve.py:1234") for layer in range(8)
    )
    ranges = (("m", 1, 64),)  # Their lookups take ten times as long, and their answers are no longer.
    entries = [
        Entry(text(m, 4096, 4096), 32, 3200, H200.text, () if m % 20 else ranges, origins) for m in range(1, 1501)
    ]
    (tmp_path / "large.jsonl").write_text("\n".join(entry.line for entry in entries))
    assert len(page.render(documents.document(tmp_path / "large.jsonl", catalog)).encode()) < LIMIT


def test_the_library_is_the_one_that_its_recipe_names() -> None:
    recipe = json.loads((ROOT / "tools" / "plotly" / "package.json").read_text())
    head = page.PLOTLY.read_text().partition("\n")[0]
    assert f"plotly.js {recipe['dependencies']['plotly.js']}:" in head
    licences = page.PLOTLY.with_name("LICENSES.txt").read_text()
    assert f"plotly.js {recipe['dependencies']['plotly.js']} (MIT)" in licences
    assert "Permission is hereby granted" in licences
    text = page.PLOTLY.read_text().lower()
    assert "</script" not in text, "it would end the script element"
    assert "<!--" not in text


def test_a_result_of_tune_is_named_and_its_workload_with_it(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "tune.json"
    path.write_text(json.dumps({"command": ["python"], "plan": {}}, indent=1))
    with pytest.raises(InputError, match="is JSON, but neither a workload nor"):
        documents.document(path, catalog)
    (tmp_path / "workload.jsonl").write_text("")
    with pytest.raises(InputError, match=rf"gemmdb report {tmp_path / 'workload.jsonl'}"):
        documents.document(path, catalog)


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    assert page.write("text\n", tmp_path / "x.html") == 5
    with pytest.raises(InputError, match="none is not a folder"):
        page.write("text", tmp_path / "none" / "x.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder is a folder"):
        page.write("text", tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "x.html"]
