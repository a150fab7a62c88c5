"""The tools of benchmarks/ and tools/: each answers `--help` without a GPU and torch, and the lists name all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import dense, h200, hostile, offtable, peers, programs, stress
from benchmarks import torch as torch_tools
from benchmarks.command import Tool
from tools import release

ROOT = Path(__file__).parents[2]
PACKAGES = (dense, h200, hostile, offtable, peers, programs, stress, torch_tools, release)
FOLDERS = ("benchmarks", "tools")
HELP = """
import runpy, sys

package, tools = sys.argv[1], sys.argv[2:]
for tool in tools:
    sys.argv = [package, tool, "--help"]
    try:
        runpy.run_module(package, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert end.code == 0, (tool, end.code)
    assert not {"torch", "triton"} & set(sys.modules), f"{tool} --help imports torch"
    print("====")
"""


def run(*command: str) -> str:
    """The standard output of a Python command in the repository, on a machine without a GPU."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tools() -> Iterator[tuple[str, Tool]]:
    """All tools with their packages."""
    return ((package.__name__, tool) for package in PACKAGES for tool in package.TOOLS)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_tool_tells_its_options_without_torch(package) -> None:
    names = [tool.name for tool in package.TOOLS]
    texts = run("-c", HELP, package.__name__, *names).split("====\n")[:-1]
    assert len(texts) == len(names)
    for name, text in zip(names, texts, strict=True):
        assert text.startswith(f"usage: python -m {package.__name__} {name} [-h]")
        assert f"\n    python -m {package.__name__} {name}" in text, "the docstring shows a call"


def test_every_tool_has_a_line_and_a_module() -> None:
    for package, tool in tools():
        assert tool.line.endswith("."), (package, tool)
        assert (ROOT / package.replace(".", "/") / f"{tool.module}.py").is_file(), (package, tool)


def test_the_list_names_every_tool_and_which_need_a_gpu() -> None:
    text = run("-m", "benchmarks")
    for package, tool in tools():
        listed = text if package.startswith("benchmarks") else run("-m", package)
        line = next(line for line in listed.splitlines() if line.strip().startswith(f"{tool.name} "))
        assert line.endswith("[GPU]") == tool.gpu, line


def test_every_module_with_options_is_in_a_list() -> None:
    """A tool that no list names would never be found."""
    present = {
        f"{path.parent.relative_to(ROOT).as_posix().replace('/', '.')}.{path.stem}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if "\ndef arguments(" in path.read_text()
    }
    assert present == {f"{package}.{tool.module}" for package, tool in tools()}


def test_torch_is_pytorch_within_the_package_of_that_name() -> None:
    pytest.importorskip("torch")
    code = "import benchmarks.torch.llama as llama; print(llama.torch.__file__)"
    assert not Path(run("-c", code).strip()).is_relative_to(ROOT / "benchmarks")


def test_bad_input_ends_a_tool_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.h200", "report", str(tmp_path / "missing.db")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "missing.db" in done.stderr
    assert len(done.stderr.splitlines()) == 1
