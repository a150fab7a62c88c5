"""The pages of reference name what is there: settings, the Python API, the schemas, the diagrams."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from kit import lab
from kit.pages import DOCS, Block, blocks, shell

import gemmdb
import gemmdb.inductor
from gemmdb.settings import ENVIRONMENT, Policy
from gemmdb.workload.entries import Entry

SETTINGS = (DOCS / "settings.md").read_text()


def test_every_variable_is_listed() -> None:
    assert re.findall(r"^\| `(GEMMDB_\w+)`", SETTINGS, re.MULTILINE) == list(ENVIRONMENT)


def test_every_field_of_a_policy_is_listed_with_its_default() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `(.*?)` \|", SETTINGS, re.MULTILINE)
    listed = {name: default for names, default in rows for name in re.findall(r"\w+", names)}
    assert listed == {field.name: json_like(field.default) for field in fields(Policy)}


def json_like(value: object) -> str:
    """A default as the page writes it."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def test_every_public_name_is_in_the_api() -> None:
    text = (DOCS / "api.md").read_text()
    shown = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    public = {f"{package.__name__}.{name}" for package in (gemmdb, gemmdb.inductor) for name in package.__all__}
    assert shown == public


def test_every_schema_is_listed() -> None:
    text = (DOCS / "json.md").read_text()
    assert re.findall(r"\(schemas/(\w+)\.json\)", text) == sorted(path.stem for path in (DOCS / "schemas").glob("*"))


def test_the_settings_in_a_program_are_accepted() -> None:
    pytest.importorskip("torch")
    run(block("settings.md", "policy"))
    gemmdb.inductor.disable()


def test_the_schemas_validate_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DOCS / "schemas", tmp_path / "docs" / "schemas")
    (tmp_path / "workload.jsonl").write_text(Entry(lab.problem(), 1, 10, lab.CPU.text).line + "\n")
    shell("gemmdb coverage workload.jsonl --json > coverage.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    run(block("json.md", "validate"))
    printed = json.loads((tmp_path / "coverage.json").read_text())
    (tmp_path / "coverage.json").write_text(json.dumps(printed | {"hit_share": 2}))
    with pytest.raises(Exception, match=r"maximum of 1"):
        run(block("json.md", "validate"))


def block(page: str, name: str) -> Block:
    """The block of that name in a page."""
    (found,) = [one for one in blocks(page) if one.name == name]
    return found


def run(block: Block) -> None:
    """Execute a block of Python."""
    exec(compile(block.code, block.name, "exec"), {"__name__": "page"})


def test_the_diagrams_are_drawn_from_the_code(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "tools.diagrams", tmp_path], cwd=DOCS.parent, check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (DOCS / "images").glob("*.svg")}
    assert kept == drawn, "run: make docs"
    assert "picked" in drawn["verdict.svg"]
