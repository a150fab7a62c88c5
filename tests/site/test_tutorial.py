"""docs/tutorial.md: its files are saved, its commands run one after the other, and what they print has the shape that
the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit.pages import Block, blocks

pytest.importorskip("torch")

MAY_BE_SLOWER = "gemmdb tune"
"""It exits with 1 where the program ran slower with gemmdb, as on a machine with other load."""
DISTURBED = "were disturbed"
"""What a build and `tune` print if other programs used the machine. The table then knows nothing, unlike the one on the
page, and disturbed times of the program are not shown."""
MEASURE = re.compile(r"^gemmdb (?:build|tune)\b", re.MULTILINE)
"""These commands stop while other programs use the machine, unless they are told not to mind."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_runs_as_it_stands(tmp_path: Path, vector_units: None) -> None:
    printed, disturbed = "", False
    for block in blocks("tutorial.md"):
        if block.language == "sh":
            printed = run(block.code, tmp_path)
            disturbed = disturbed or DISTURBED in printed
        elif block.language == "text":
            assert disturbed or shown(block) <= labels(printed), f"{block.code}\n--- but it printed ---\n{printed}"
        else:
            (tmp_path / block.name).write_text(block.code)
    assert (tmp_path / "workload-report.html").stat().st_size > 100_000
    assert list((tmp_path / "data" / "gemmdb").glob("cpu-*.db"))


def run(commands: str, folder: Path) -> str:
    """What the commands of a block print. A command that fails ends the test."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GEMMDB_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    environ["OMP_NUM_THREADS"] = "1"  # Threads that wait for each other take minutes beside other workers of the tests.
    environ |= {"XDG_DATA_HOME": str(folder / "data"), "XDG_CACHE_HOME": str(folder / "cache"), "PATH": path}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", MEASURE.sub(r"\g<0> --wait 0s", commands)],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    allowed = (0, 1) if commands.startswith(MAY_BE_SLOWER) else (0,)
    assert done.returncode in allowed, f"{commands}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def shown(block: Block) -> set[str]:
    """The first words of the lines that the page shows, except for what is counted or measured."""
    return {word for word in labels(block.code) if not word[0].isdigit()}


def labels(text: str) -> set[str]:
    """The first word of each line."""
    return {line.split()[0] for line in text.splitlines() if line.strip()}


def test_the_tutorial_has_commands_and_what_they_print() -> None:
    found = [block.language for block in blocks("tutorial.md")]
    assert found.count("sh") >= 8
    assert found.count("text") >= 6
    assert all(block.name for block in blocks("tutorial.md") if block.language == "python")
    commands = [line for block in blocks("tutorial.md") if block.language == "sh" for line in block.code.splitlines()]
    assert {line.split()[1] for line in commands if line.startswith("gemmdb ")} >= {
        "record", "coverage", "build", "explain", "tune", "report",
    }  # fmt: skip
