"""The reference is what the commands say, and its examples are right."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import typer
from kit.devices import H200

from gemmdb.cli.app import app
from gemmdb.cli.reference import render
from gemmdb.exchange.formats import export
from gemmdb.generators import shapes

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "cli.md"
BLOCKS = "\n".join(re.findall(r"^```sh\n(.*?)^```", render(), re.MULTILINE | re.DOTALL))
EXAMPLES = sorted(set(re.findall(r"^(gemmdb \w.*?)(?:\s+#.*)?$", BLOCKS, re.MULTILINE)))
RUN_ELSEWHERE = (
    "gemmdb build",
    "gemmdb compare",
    "gemmdb demo",
    "gemmdb doctor",
    "gemmdb freeze",
    "gemmdb kernels build",
    "gemmdb verify mine.db --remeasure",
    "gemmdb verify workload.jsonl --requalify",
    "gemmdb report --",
    "gemmdb tables p",
    "gemmdb tune",
    "gemmdb vllm",
)
"""What takes longer, needs a network, or measures on this machine: parsed here, run by the tests of these commands."""


def test_docs_are_generated_from_the_commands():
    assert REFERENCE.read_text() == render(), "run: python -m gemmdb.cli.reference > docs/cli.md"


def test_there_are_examples_of_every_command():
    assert {example.split()[1] for example in EXAMPLES} == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example.startswith(RUN_ELSEWHERE)])
def test_example_parses(example):
    group = typer.main.get_command(app)
    _, name, *arguments = shlex.split(example)
    group.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


@pytest.mark.parametrize("example", [example for example in EXAMPLES if not example.startswith(RUN_ELSEWHERE)])
def test_example_runs(gemmdb, table, make_table, workload, monkeypatch, example):
    """Exit code 0 or 1: the files and the device that the examples name are there."""
    for name in ("monday.db", "tuesday.db"):
        make_table(name)
    h200 = make_table("h200.db", device=H200)
    for kind in ("csv", "jsonl"):
        export(table, Path(f"rows.{kind}"), kind)
    monkeypatch.setenv("GEMMDB_TABLES", f"{table}{os.pathsep}{h200}")
    Path("mm.json").write_text('[{"(16, 512, 512)": [{"type": "cublas", "time": 0.01}]}]')
    Path("train.py").write_text("print('trained')")
    Path("serve.py").write_text("")
    _, name, *arguments = shlex.split(example)
    if name == "report":
        pytest.importorskip("jinja2")
    done = gemmdb(name, *arguments)
    assert done.code in (0, 1), done


def test_the_table_of_presets_has_their_sizes():
    text = (ROOT / "docs" / "how-to" / "build.md").read_text()
    listed = re.findall(r"^\| `([\w-]+)` \| ([\d,]+)(?:,[^|]*)? \|", text.partition("## Presets")[2], re.MULTILINE)
    assert len(listed) >= 4
    assert listed == [(name, f"{len(shapes.load(name, 'cuda')):,}") for name, _ in listed]
