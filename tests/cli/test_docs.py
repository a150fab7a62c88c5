"""The reference is what the commands say, and its examples are right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from gemmdb.cli.app import app
from gemmdb.cli.reference import render

REFERENCE = Path(__file__).parents[2] / "docs" / "cli.md"
EXAMPLES = sorted(set(re.findall(r"^(gemmdb \w.*?)(?:\s+#.*)?$", render(), re.MULTILINE)))
NEEDS_MORE = {
    "build": "takes minutes",
    "doctor": "has tests of its own",
}
"""Commands whose examples are parsed here, and run elsewhere."""


def test_docs_are_generated_from_the_commands():
    assert REFERENCE.read_text() == render(), "run: python -m gemmdb.cli.reference > docs/cli.md"


def test_there_are_examples_of_every_command():
    assert {example.split()[1] for example in EXAMPLES} == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_parses(example):
    group = typer.main.get_command(app)
    _, name, *arguments = shlex.split(example)
    group.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.split()[1] not in NEEDS_MORE])
def test_example_runs(gemmdb, table, make_table, workload, example):
    """Exit code 0 or 1, and nothing on stderr but notes: the files that the examples name are there."""
    for name in ("monday.db", "tuesday.db"):
        make_table(name)
    Path("train.py").write_text("print('trained')")
    Path("serve.py").write_text("")
    _, name, *arguments = shlex.split(example)
    done = gemmdb(name, *arguments)
    assert done.code in (0, 1), done
