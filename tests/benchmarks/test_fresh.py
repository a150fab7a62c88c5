"""Problems that no preset lists, and how answers to them are timed and counted."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kit.devices import H200

from benchmarks.offtable import fresh, fresh_problems, fresh_report
from gemmdb.generators.backend import Job, Outcome
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, Status, Times

TILE = Config.of(
    "triton", "tile", block_m=16, block_n=64, block_k=128, group_m=8, split_k=1, reduce="none", swap=0, load="pointer",
    dequant="cast", warps=4, stages=3,
)  # fmt: skip
CUTLASS = Config.of(
    "cutlass", "gemm", tile_m=128, tile_n=128, tile_k=64, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
    swizzle=1, raster="auto", swap=0,
)  # fmt: skip


@pytest.fixture
def few_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_problems.shapes, "presets", lambda: ["odd", "vision"])


@pytest.mark.usefixtures("few_presets")
def test_a_seed_draws_the_same_problems_and_none_of_a_preset() -> None:
    drawn = fresh_problems.draw(300, 1)
    assert drawn == fresh_problems.draw(300, 1)
    assert drawn[:50] == fresh_problems.draw(50, 1)
    assert drawn != fresh_problems.draw(300, 2)
    listed = {(p.n, p.k) for name in ("odd", "vision") for p in fresh_problems.shapes.load(name, "cuda")}
    assert not listed & {(problem.n, problem.k) for problem in drawn}
    assert len({problem.text for problem in drawn}) == 300


@pytest.mark.usefixtures("few_presets")
def test_they_are_of_all_kinds() -> None:
    drawn = fresh_problems.draw(300, 1)
    assert {problem.op for problem in drawn} == {*fresh_problems.OPS}
    assert all(problem.m > 16 and problem.n % 16 == problem.k % 16 == 0 for problem in drawn if problem.op == "int_mm")
    assert min(problem.m for problem in drawn) <= 4
    assert max(problem.m for problem in drawn) > 2048
    odd = [problem for problem in drawn if problem.n % 8 or problem.k % 8]
    assert 20 < len(odd) < 90
    assert {problem.b.layout.align for problem in odd} >= {1, 2}


class Measurer:
    """Kernels take 8 us and ATen 10, without a GPU."""

    def __init__(self) -> None:
        self.closed = False

    def prepare(self, jobs: Sequence[Job], ready: Callable[[Job], None]) -> None:
        for job in jobs:
            ready(job)

    def emitted(self, config: Config) -> Config:
        return config

    def measure(self, problem: Problem, configs: Sequence[Config], protocol: Protocol, samples: int) -> list[Outcome]:
        def outcome(config: Config) -> Outcome:
            us = 10.0 if config == ATEN else 8.0
            return Outcome(config, Status.OK, Times(us, us, us, samples, 10.0), 0.0, 0.0)

        return [outcome(config) for config in configs]

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Machine:
    """A backend of two GPUs that need not be here. `made`: its measurers; `begun`: the problems that it announced."""

    device = H200
    workers = 2
    made: list[Measurer] = field(default_factory=list)
    begun: list[Problem] = field(default_factory=list)

    def protocols(self, effort: object) -> list[Protocol]:
        return [Protocol("graph", "cold", 20, 30, version=3)]

    def begin(self, jobs: Sequence[Job]) -> None:
        self.begun.extend(job.problem for job in jobs)

    def measurer(self, gpu: int, effort: object) -> Measurer:
        self.made.append(Measurer())
        return self.made[-1]

    def close(self) -> None:
        """Its measurers share nothing."""


def hit(config: Config, speedup: float = 1.3) -> Hit:
    return Hit("near", config, 8.0, speedup, "table", {"least_gain": 0.1})


PROBLEMS = [Problem.gemm("mm", m=m, n=1024, k=1032) for m in (3, 5, 77)]


def test_every_kernel_is_timed_and_becomes_a_line(tmp_path: Path) -> None:
    options = argparse.Namespace(samples=5, gpus=None, out=tmp_path / "lines.jsonl")
    answers: dict[Problem, fresh.Answers] = {p: {"certain": None, "confirming": hit(TILE)} for p in PROBLEMS}
    machine = Machine()
    fresh.measure(machine, answers, options, time.monotonic() + 30)
    lines = [json.loads(text) for text in options.out.read_text().splitlines()]
    assert {one["problem"] for one in lines} == {problem.text for problem in PROBLEMS}
    assert lines[0]["certain"] is None
    assert lines[0]["timed"] == {TILE.text: {"us": 8.0, "aten_us": 10.0}}
    assert [one.closed for one in machine.made] == [True, True]


def test_nothing_begins_after_the_time_is_up(tmp_path: Path) -> None:
    options = argparse.Namespace(samples=5, gpus=1, out=tmp_path / "lines.jsonl")
    answers: dict[Problem, fresh.Answers] = {p: {"certain": hit(TILE), "confirming": hit(TILE)} for p in PROBLEMS}
    machine = Machine()
    fresh.measure(machine, answers, options, time.monotonic() - 1)
    assert [one.closed for one in machine.made] == [True]


def test_what_is_served_without_a_confirmation_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, sure, none = PROBLEMS
    given: dict[Problem, fresh.Answers] = {
        first: {"certain": hit(ATEN), "confirming": hit(TILE)},
        sure: {"certain": hit(TILE), "confirming": hit(TILE)},
        none: {"certain": None, "confirming": None},
    }
    machine = Machine()
    monkeypatch.setattr(fresh.backends, "device_for", lambda arch: None)
    monkeypatch.setattr(fresh.backends, "backend_for", lambda device: machine)
    monkeypatch.setattr(fresh, "draw", lambda count, seed, grouped: list(PROBLEMS))
    monkeypatch.setattr(fresh, "answers", lambda problem, device: given[problem])
    monkeypatch.setattr(fresh, "software", dict)
    monkeypatch.setattr(fresh, "gpu_states", list)
    options = argparse.Namespace(
        samples=5,
        gpus=1,
        out=tmp_path / "lines.jsonl",
        seconds=30.0,
        count=3,
        seed=1,
        grouped=False,
        skip_cutlass=False,
    )
    fresh.main(options)
    assert machine.begun == [sure, first]
    fresh.main(options)
    assert machine.begun == [sure, first]
    lines = [json.loads(text) for text in options.out.read_text().splitlines()]
    assert sorted(one["problem"] for one in lines if "problem" in one) == sorted(problem.text for problem in PROBLEMS)


def test_which_answers_need_nvcc() -> None:
    assert fresh.needs_nvcc({"certain": None, "confirming": hit(CUTLASS)})
    assert not fresh.needs_nvcc({"certain": hit(ATEN), "confirming": hit(TILE)})


def line(problem: Problem, ratio: float | None, config: Config = TILE) -> dict[str, Any]:
    times = None if ratio is None else Times(10 * ratio, 9 * ratio, 11 * ratio, 5, 10.0)
    outcome = Outcome(config, Status.OK if times else Status.ERROR, times, 0.0, 0.0, "" if times else "no nvcc")
    return fresh.line(problem, {"certain": None, "confirming": hit(config)}, {config: outcome})


def test_the_report_counts_what_is_slower() -> None:
    lines = [line(p, ratio) for p, ratio in zip(PROBLEMS, (0.5, 1.07, 1.2), strict=True)]
    lines += [
        line(PROBLEMS[0].resized(3, 1025, 1031), None),
        fresh.line(PROBLEMS[1], {"certain": None, "confirming": None}, {}),
    ]
    numbers = list(fresh_report.figures(lines, "confirming"))
    assert numbers[:5] == ["4", "1", "2", "1", "0.83x"]
    assert float(numbers[5].rstrip("x")) == pytest.approx((0.5 * 1.07 * 1.2) ** (-1 / 3), abs=1e-3)
    assert float(numbers[6].rstrip("x")) == pytest.approx((0.5 * 1.07 * 1.2) ** (-1 / 5), abs=1e-3)
    assert list(fresh_report.figures(lines, "certain"))[:5] == ["0", "0", "0", "0", "-"]
    text = "\n".join(fresh_report.markdown(lines))
    assert "0.83x, expected 1.30x: mm m=77" in text
    assert "N or K no multiple of 8 | 1 |" in text
