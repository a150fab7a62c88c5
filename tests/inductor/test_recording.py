"""Record mode: which GEMMs a program compiles and how often, whatever becomes of the program."""

import os

import pytest
import torch
from torch import nn

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.workload import entries


@pytest.fixture
def linear():
    return nn.Linear(64, 32).eval(), torch.randn(8, 64)


@pytest.mark.slow
def test_record_as_a_block_and_as_a_function(kit, linear, tmp_path):
    model, x = linear
    with gemmdb.inductor.record(tmp_path / "block.jsonl"), torch.no_grad():
        run = torch.compile(model)
        for _ in range(4):
            run(x)
    kit.compiled(model, x)
    (entry,) = entries.read(tmp_path / "block.jsonl").entries
    problem = Problem.gemm("addmm", m=8, n=32, k=64, dtype="fp32")
    assert (entry.problem.text, entry.count, entry.calls, entry.ranges) == (problem.text, 1, 4, ())
    program = f"""
        import gemmdb.inductor
        gemmdb.inductor.record({str(tmp_path / "function.jsonl")!r})
        import torch
        run = torch.compile(lambda x, w: x @ w, dynamic=True)
        run(torch.ones(2, 3), torch.ones(3, 4)); run(torch.ones(5, 3), torch.ones(3, 4))
        square = torch.ones(2, 3, 3)
        torch.compile(torch.baddbmm)(square, square, square)
        print(1)
    """
    kit.run(program)
    found = entries.read(tmp_path / "function.jsonl")
    (entry,) = found.entries
    assert (entry.calls, entry.ranges[1]) == (2, ("m", 2, None))
    assert list(found.uncovered) == ["baddbmm"]


@pytest.mark.slow
def test_a_program_that_is_killed_has_recorded_what_it_compiled(kit, tmp_path):
    program = f"""
        import gemmdb.inductor, os, torch
        gemmdb.inductor.record({str(tmp_path / "killed.jsonl")!r})
        torch.compile(lambda x, w: x @ w)(torch.ones(2, 3), torch.ones(3, 4))
        os.kill(os.getpid(), 9)
    """
    with pytest.raises(AssertionError):
        kit.run(program)
    (entry,) = entries.read(tmp_path / "killed.jsonl").entries
    assert (entry.problem.k, entry.count) == (3, 1)


def test_a_forked_child_writes_only_its_own_calls(kit, tmp_path):
    with gemmdb.inductor.record(tmp_path / "w.jsonl") as recording:
        run = torch.compile(lambda x, w: x @ w)
        for _ in range(3):
            run(torch.ones(2, 3), torch.ones(3, 4))
        child = os.fork()
        if child == 0:
            recording.write()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    (entry,) = entries.read(tmp_path / "w.jsonl").entries
    assert (entry.count, entry.calls) == (1, 3)


def test_two_recordings_are_stopped_one_by_one(kit, tmp_path):
    first, second = (gemmdb.inductor.record(tmp_path / name) for name in ("first.jsonl", "second.jsonl"))
    second.stop()
    kit.compiled(lambda x, w: x @ w, torch.ones(2, 3), torch.ones(3, 4))
    first.stop()
    first.stop()
    kit.compiled(lambda x, w: x @ w, torch.ones(2, 5), torch.ones(5, 4))
    (entry,) = entries.read(tmp_path / "first.jsonl").entries
    assert (entry.problem.k, entry.calls) == (3, 1)
    assert not (tmp_path / "second.jsonl").exists()


def test_calls_after_the_end_of_a_recording_are_not_recorded(kit, tmp_path, monkeypatch):
    monkeypatch.setattr("gemmdb.inductor.recording.INTERVAL_S", 0.0)
    run = torch.compile(lambda x, w: x @ w)
    with gemmdb.inductor.record(tmp_path / "w.jsonl"):
        run(torch.ones(2, 3), torch.ones(3, 4))
    run(torch.ones(2, 3), torch.ones(3, 4))
    (entry,) = entries.read(tmp_path / "w.jsonl").entries
    assert entry.calls == 1


def test_a_workload_that_cannot_be_written_does_not_end_the_program(kit, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with gemmdb.inductor.record(tmp_path / "file" / "workload.jsonl"):
        result = torch.compile(lambda x, w: x @ w)(torch.ones(2, 3), torch.ones(3, 4))
    assert result.shape == (2, 4)
    assert "cannot record" in caplog.text
