"""The README: its programs run, and its commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.splitlines()[0])
def test_the_programs_run(program: str, tmp_path: Path) -> None:
    if "torch" in program:
        pytest.importorskip("torch")
    environ = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout


def test_it_has_at_most_ninety_lines() -> None:
    assert len(TEXT.splitlines()) <= 90


def test_the_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^make (\w+)", TEXT, re.MULTILINE))
    assert named == {"demo", "test"}
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
