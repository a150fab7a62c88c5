"""The programs of the suite, and those of a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common import ROOT
from benchmarks.programs.program import KINDS
from benchmarks.programs.suite import chosen, suite
from gemmdb.errors import InputError


def test_the_suite_has_programs_of_every_kind_that_can_be_made() -> None:
    programs = suite()
    assert {program.kind for program in programs.values()} <= set(KINDS)
    for name, program in programs.items():
        assert callable(program.make), name
        assert program.grad == (program.kind == "training"), name


def test_a_program_of_each_scheme_of_torchao_has_the_flags_that_torchao_sets() -> None:
    """They make a compile take minutes, so the others are without."""
    programs = [program for name, program in suite().items() if name.startswith("torchao-")]
    tuned = [program.name.split("-")[1] for program in programs if program.tuned]
    assert sorted(tuned) == sorted({program.name.split("-")[1] for program in programs})


def test_layers_of_experts_have_three_models_from_1_to_4096_tokens() -> None:
    names = {program.name for program in chosen("experts-*")}
    wanted = [(model, tokens) for model in ("mixtral", "qwen3-moe", "deepseek") for tokens in (1, 16, 256, 4096)]
    assert names == {f"experts-{model}-{tokens}" for model, tokens in wanted}


def test_programs_are_chosen_by_patterns() -> None:
    assert [program.name for program in chosen("train-blocks,gpt-fast-int8-?")] == [
        "train-blocks", "gpt-fast-int8-1", "gpt-fast-int8-8",
    ]  # fmt: skip
    assert len(chosen("*")) == len(suite())
    with pytest.raises(InputError, match="no program is named nothing-like-it"):
        chosen("nothing-like-it")


PROGRAM = """
from benchmarks.programs.building import noise, of_model
from benchmarks.programs.program import Program
import torch

def make(size, device):
    return of_model(torch.nn.Linear(16, 32), {"input": noise(4, 16, device=device, dtype=torch.float32)}, exact=False)

def programs():
    return [Program("mine", "bf16", make)]
"""


def test_a_file_has_programs_in_place_of_the_suite(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(PROGRAM)
    assert [(one.name, one.collection) for one in chosen("*", str(source))] == [("mine", "mine")]
    for text, why in (("x = 1", "no function `programs`"), (None, "not a Python file")):
        other = tmp_path / "other.py"
        other.write_text(text) if text else other.unlink()
        with pytest.raises(InputError, match=why):
            suite(str(other))


@pytest.mark.slow
def test_measure_compiles_a_tiny_program_cold_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source, out = tmp_path / "mine.py", tmp_path / "rows.jsonl"
    source.write_text(PROGRAM)
    flags = ["--device", "cpu", "--size", "tiny", "--jobs", "1", "--cold", "--cpus", "1"]
    call = [sys.executable, "-m", "benchmarks.programs", "measure", "--out", str(out), "--source", str(source), *flags]
    for expected in (1, 1):  # The second time the file has it.
        subprocess.run(call, check=True, cwd=ROOT, capture_output=True)
        lines = out.read_text().splitlines()
        assert len(lines) == expected
    found = json.loads(lines[0])
    assert (found["cold"], found["cpus"], set(found) & {"taken", "failure"}) == (True, 1, set())
    assert {name: set(facts) for name, facts in found["ways"].items()} == {
        "default": {"cold_s", "enabling_s", "waited_s", "torch_s"},
        "gemmdb": {"cold_s", "enabling_s", "waited_s", "torch_s", "stats"},
    }
    assert found["ways"]["gemmdb"]["stats"]["rungs"], found


def test_programs_that_are_not_in_the_suite_have_other_names() -> None:
    held_out = suite(str(ROOT / "benchmarks/programs/held_out.py"))
    assert len(held_out) == 32
    assert not set(held_out) & set(suite())
