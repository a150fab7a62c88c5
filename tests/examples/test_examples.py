"""The programs of examples/ run, and print what their docstrings promise."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gemmdb import Config, Problem
from gemmdb.hit import RUNGS

pytest.importorskip("torch")
from kit.inductor import script

EXAMPLES = Path(__file__).parents[2] / "examples"
MISSES = ("aten", "live")
PRODUCT = re.compile(r"(\w+)  (\w+:\S.*?)  (\w+ m=.*)")
DISTURBED = "timings were disturbed"
"""What a build prints if other programs used the machine."""
LARGEST = 0.05
"""Of a difference from eager: bf16 on a GPU, with outputs of about 1."""


@pytest.fixture
def run(tmp_path: Path, vector_units: None):
    """Runs an example as a user does, without tables of their own; its lines of output. `warnings`: what it printed on
    stderr."""

    def go(name: str) -> list[str]:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("GEMMDB_")}
        # Threads that wait for each other take minutes beside other workers of the tests.
        environ["OMP_NUM_THREADS"] = "1"
        environ |= {"XDG_DATA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = script(EXAMPLES / name, tmp_path, environ)
        assert done.returncode == 0, done.stderr[-3000:]
        go.warnings = done.stderr
        return done.stdout.splitlines()

    return go


def products(lines: list[str]) -> list[tuple[str, Config, Problem]]:
    """The GEMMs that an example printed: rung, config, problem."""
    found = [match.groups() for line in lines if (match := PRODUCT.fullmatch(line))]
    assert {rung for rung, *_ in found} <= {*RUNGS, *MISSES}
    return [(rung, Config.parse(config), Problem.parse(problem)) for rung, config, problem in found]


def value(lines: list[str], label: str) -> str:
    """What follows `label:` in the one line that begins with it."""
    (line,) = [line for line in lines if line.startswith(f"{label}:")]
    return line.partition(":")[2].strip()


@pytest.mark.slow
def test_inference(run) -> None:
    lines = run("inference.py")
    first, second = (problem for *_, problem in products(lines))
    assert (first.m, first.n, first.k, first.fusion) == (16, 4096, 1024, "pointwise:math")
    assert (second.m, second.n, second.k, second.fusion) == (16, 1024, 4096, "none")
    assert float(value(lines, "largest difference from eager")) < LARGEST
    assert int(value(lines, "kernels benchmarked at compile time")) >= 0


@pytest.mark.slow
def test_training(run) -> None:
    lines = run("training.py")
    found = [problem for *_, problem in products(lines)]
    assert len(found) == 5
    assert {(problem.m, problem.n, problem.k) for problem in found} == {
        (64, 512, 256), (64, 128, 512), (64, 512, 128), (128, 512, 64), (512, 256, 64),
    }  # fmt: skip
    expected, losses = (list(map(float, value(lines, f"{mode} losses").split())) for mode in ("eager", "compiled"))
    assert losses == pytest.approx(expected, abs=2e-4)
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.slow
def test_aot(run) -> None:
    lines = run("aot.py")
    ((_, _, problem),) = products(lines)
    assert (problem.m, problem.n, problem.k) == (16, 512, 256)
    assert float(value(lines, "largest difference from eager")) < LARGEST


@pytest.mark.slow
def test_int8_decode(run) -> None:
    lines = run("int8_decode.py")
    assert [(problem.op, problem.n) for *_, problem in products(lines)] == [("mixed_mm", 256), ("mixed_mm", 512)]
    expected, tokens = (value(lines, f"{mode} tokens").split() for mode in ("eager", "compiled"))
    assert tokens == expected
    assert len(set(tokens)) == 9


@pytest.mark.slow
def test_workload(run) -> None:
    lines = run("workload.py")
    # What was timed beside other tests is no answer.
    answered = "0 of 1 problem answered" if DISTURBED in run.warnings else "1 of 1 problem answered, 100.0%"
    assert any(line.startswith(answered) for line in lines), lines
    ((rung, config, problem),) = products(lines)
    assert rung == "exact"
    assert (problem.op, problem.m, problem.n, problem.k) == ("mixed_mm", 16, 256, 128)
    assert config.backend in ("aten", "triton")


def test_the_list_names_every_example() -> None:
    listed = re.findall(r"\((\w+\.py)\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_each_example_is_short_and_says_what_to_expect(path: Path) -> None:
    text = path.read_text()
    head = text.partition('"""\n\n')[0]
    assert f"python examples/{path.name}" in head
    assert "Expect " in head
    assert len(text.splitlines()) <= 65
