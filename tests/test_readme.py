"""What the README shows: its programs run, its links lead somewhere, its list of settings is the code's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemmdb.settings import ENVIRONMENT

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.splitlines()[0])
def test_the_programs_run(program: str, tmp_path: Path) -> None:
    if "torch" in program:
        pytest.importorskip("torch")
    environ = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout


def test_the_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_setting_is_listed() -> None:
    assert set(re.findall(r"^\| `(GEMMDB_\w+)`", TEXT, re.MULTILINE)) == set(ENVIRONMENT)


def test_the_raw_results_are_there() -> None:
    named = re.findall(r"`(benchmarks/[\w./-]+)`", TEXT)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
