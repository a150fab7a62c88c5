"""The pages of docs/how-to whose programs need other packages. `make packages` installs them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from kit.pages import program, shell

from benchmarks.programs.packages import missing

ROOT = Path(__file__).parents[2]
START = "import runpy, sys; from benchmarks.programs.packages import missing; missing(sys.argv[1:2]);"
START += "runpy.run_path(sys.argv[2], run_name='__main__')"
"""Runs a program where the torchvision that is installed cannot be imported: see benchmarks/programs/packages.py."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("page", "package", "expected"),
    [
        ("how-to/torchao.md", "torchao", "mixed_mm aten"),
        ("how-to/generate.md", "transformers", "torch.Size([1, 12])"),
    ],
)
def test_the_program_of_the_page_runs(
    page: str, package: str, expected: str, tmp_path: Path, vector_units: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    if why := missing([package]):
        pytest.skip(why)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    arguments = f"{package} {program(page, tmp_path)}"
    assert expected in shell(f"python -W ignore -c {shlex.quote(START)} {arguments}", tmp_path)
