"""benchmarks/programs: what a measuring process compiles and times, with a program of one layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.programs.program import Built, Program


def linear(size: str, device: str) -> Built:
    """One layer."""
    import torch

    from benchmarks.programs.building import noise, of_model

    torch.manual_seed(0)
    return of_model(torch.nn.Linear(32, 48).bfloat16(), {"input": noise(4, 32, device=device)})


def test_a_program_is_compiled_cold_and_warm_and_timed(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("torch")
    from benchmarks.programs import check, ways, work, worker

    program = Program("linear", "bf16", linear)
    monkeypatch.setattr(worker, "suite", lambda source: {"linear": program})
    monkeypatch.setattr(ways, "FOLDERS", {"XDG_DATA_HOME": "data"})  # A new cache would cost a precompiled header.
    names = ("default", "gemmdb")
    job = work.Job("linear", names, "tiny", "cpu", str(tmp_path), str(tmp_path / "lock"), 0.1, 3, False)
    with check.own_state():
        cold = worker.cold(replace(job, ways=("gemmdb",)))
        warm = worker.warm(job)
    assert cold["cold_s"] > 0
    phases = cold["torch_s"]  # Which there are depends on what an earlier test left in Inductor's cache.
    assert 0 < phases["_compile.compile_inner"] == max(phases.values()) < cold["cold_s"]
    assert [(one["rung"], one["count"]) for one in cold["stats"]["products"]] == [("aten", 1)]
    assert set(warm["taken"]) == set(names)
    assert all(us > 0 for values in warm["taken"].values() for us in values)
    assert warm["ways"]["gemmdb"]["error"] == warm["ways"]["default"]["error"] < 0.01
    assert "a CPU has no graphs" in warm["clock"]


def test_all_ways_stay_compiled_while_they_are_timed_as_users_run_them(tmp_path: Path, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    from torch._dynamo.utils import counters

    import gemmdb.inductor
    from benchmarks.programs import as_run, check, ways, work

    monkeypatch.setattr(ways, "FOLDERS", {"XDG_DATA_HOME": "data"})
    names = ("default", "gemmdb")
    job = work.Job("linear", names, "tiny", "cpu", str(tmp_path), str(tmp_path / "lock"), 0.1, 0, False)
    with check.own_state(), torch.no_grad():
        counters.clear()
        found = as_run.times(job, Program("linear", "bf16", linear), linear("tiny", "cpu"))
        stats = gemmdb.inductor.stats()
    assert set(found) == set(names)
    assert all(len(times) >= 9 and min(times) > 0 for times in found.values())
    assert counters["stats"]["unique_graphs"] == 2, "a way was compiled again while it was timed"
    assert [one["count"] for one in stats["products"]] == [1], "gemmdb compiled its own way alone"


def test_a_program_that_cannot_be_timed_as_run_keeps_its_other_times(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("torch")
    from benchmarks.programs import as_run, work, worker

    def fails(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(as_run, "times", fails)
    job = work.Job("linear", ("default",), "tiny", "cpu", str(tmp_path), str(tmp_path / "lock"), 0.1, 0, False)
    program = Program("linear", "bf16", linear)
    assert worker._as_run(job, program, linear("tiny", "cpu")) == {"no_as_run": "RuntimeError: out of memory"}
    assert worker._as_run(replace(job, ways=()), program, linear("tiny", "cpu")) == {}


def test_a_way_that_fails_leaves_the_others(tmp_path: Path, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.programs import check, ways, work, worker

    def make(size: str, device: str) -> Built:
        def step(compile):
            if getattr(compile, "keywords", {}).get("mode"):
                raise RuntimeError("first line\nlast line")
            return lambda: torch.ones(2)

        return Built(step)

    monkeypatch.setattr(worker, "suite", lambda source: {"odd": Program("odd", "bf16", make)})
    monkeypatch.setattr(ways, "FOLDERS", {})
    job = work.Job("odd", ("default", "max-autotune"), "tiny", "cpu", str(tmp_path), str(tmp_path / "l"), 0.1, 0, False)
    with check.own_state():
        found = worker.warm(job)
    assert found["ways"]["max-autotune"]["failure"] == "RuntimeError: first line"
    assert set(found["taken"]) == {"default"}
