"""What the documents name is there: links and their headings, paths, modules, targets of the Makefile."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from gemmdb.settings import CONFIRM_S, EXPLICIT_LIVE_CALLS, LIVE_CALLS, LIVE_S

ROOT = Path(__file__).parent.parent
FOLDERS = ("gemmdb", "generators", "cli", "tables", "tests", "benchmarks", "tools", "examples", "docs")
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.fixture(params=DOCUMENTS)
def document(request: pytest.FixtureRequest) -> Path:
    return ROOT / request.param


def test_there_are_documents() -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/contributing/architecture.md"} <= set(DOCUMENTS)


def test_its_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    broken = [link for link in links if not link.startswith("http") and not leads_somewhere(document, link)]
    assert broken == []


def leads_somewhere(document: Path, link: str) -> bool:
    """Whether the file of a relative link is there, and the heading in it that the link names."""
    path, _, heading = link.partition("#")
    target = (document.parent / path) if path else document
    if not target.exists() or not heading:
        return target.exists()
    titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
    return heading in [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def test_the_paths_that_it_names_are_there(document: Path) -> None:
    """In backquotes or in a command, from the root of the repository. A guide may name the files that it makes: the
    paths behind the languages of its code blocks."""
    text = document.read_text()
    made = " ".join(re.findall(r"^```\w+ (\S+)$", text, re.MULTILINE))
    named = re.findall(rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w./*{{}},-]*[\w*}}/])", text)
    missing = [path for path in named if not all(any(ROOT.glob(one)) for one in spelled_out(path.rstrip("/")))]
    assert [path for path in missing if path not in made] == []


def spelled_out(pattern: str) -> list[str]:
    """`a/{b,c}.py` as `a/b.py` and `a/c.py`."""
    pieces = re.split(r"\{([^}]*)\}", pattern)
    choices = [piece.split(",") if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ["".join(chosen) for chosen in product(*choices)]


def test_its_limits_of_compile_time_are_those_of_the_code(document: Path) -> None:
    pytest.importorskip("torch")
    from gemmdb.inductor.benchmark import limits

    text = " ".join(document.read_text().split())
    assert {float(seconds) for seconds in re.findall(r"(\d+) s(?:econds)? per process", text)} <= {limits.PROCESS_S}
    assert re.findall(r"\d+ s(?:econds)? per graph", text) == []  # The limit per process is lower than any of these.


def test_limits_of_compile_time_are_quoted() -> None:
    texts = [" ".join((ROOT / path).read_text().split()) for path in DOCUMENTS]
    assert sum(bool(re.search(r"\d+ s(?:econds)? per process", text)) for text in texts) >= 6


def test_the_limits_per_graph_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "at-compile-time.md").read_text()
    stated = dict(re.findall(r"^\| ([\w ]+) \|[^|]*\| ([\d.]+) s[ ,|]", page, re.MULTILINE))
    assert (float(stated["live tuning"]), float(stated["confirming"])) == (LIVE_S, CONFIRM_S)
    assert f"within {LIVE_CALLS:,} calls of the graph" in page
    settings = (ROOT / "docs" / "settings.md").read_text()
    assert f"0 means {LIVE_CALLS:,}, or {EXPLICIT_LIVE_CALLS:,}" in settings
    assert f"0 means {CONFIRM_S:g}." in settings


def test_the_modules_that_it_names_are_there(document: Path) -> None:
    """In backquotes, with what is taken from them, and behind `python -m`."""
    text = document.read_text()
    named = re.findall(r"`(gemmdb(?:\.\w+)+)", text)
    tools = re.findall(r"python -m ((?:benchmarks|tools)\.\w+) +([a-z][\w-]*)", text)
    run = re.findall(r"python -m ((?:gemmdb|benchmarks|tools)[\w.]*)", text)
    run += [
        f"{package}.{tool.replace('-', '_')}" for package, tool in tools if (ROOT / package.replace(".", "/")).is_dir()
    ]
    assert [name for name in named if not resolves(name)] == []
    assert [name for name in run if not any(ROOT.glob(f"{name.replace('.', '/')}*"))] == []


def resolves(name: str) -> bool:
    """Whether the name is a module, or an attribute of one."""
    module, names = name, []
    while not spec_of(module):
        module, _, last = module.rpartition(".")
        names.insert(0, last)
    owner = importlib.import_module(module)
    for attribute in names:
        if not hasattr(owner, attribute):
            return False
        owner = getattr(owner, attribute)
    return True


def spec_of(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def test_the_targets_that_it_names_are_in_the_makefile(document: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make (\w+)", document.read_text())) <= targets
