"""The part of Inductor's cache key that stands for gemmdb's own code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

import gemmdb
from gemmdb.inductor.lower.adapter import slots

PACKAGE = Path(gemmdb.__file__).parent
APART = ("cli", "generators", "tables", "tune")
"""What changes nothing about the graphs of an existing table: the command line, the offline phase, the tables."""


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package, as the one whose digest is taken."""
    folder = tmp_path / "gemmdb"
    shutil.copytree(PACKAGE, folder, ignore=lambda _, names: {"__pycache__"} & set(names))
    monkeypatch.setattr(slots, "__file__", str(folder / Path(slots.__file__).relative_to(PACKAGE)))
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def digest() -> str:
    return slots.code_digest.__wrapped__()


def test_a_change_of_any_source_file_of_the_library_changes_the_key(copy: Path) -> None:
    library = [path for path in files(copy) if path.relative_to(copy).parts[0] not in APART]
    assert slots.sources(copy) == library
    one_of_each = {path.suffix: path for path in library}
    assert one_of_each.keys() >= {".py", ".jinja", ".cu", ".json"}
    before = digest()
    for path in one_of_each.values():
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        assert digest() != before, path.name
        path.write_bytes(content)
    assert digest() == before


def test_a_change_beside_the_library_leaves_the_key(copy: Path) -> None:
    before = digest()
    for name in APART:
        for path in files(copy / name):
            path.write_bytes(b"changed")
        (copy / name / "more.py").write_text("")
    assert digest() == before
