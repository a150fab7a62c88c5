"""Record mode: which GEMMs a program compiles and how often, whatever becomes of the program."""

import json
import os
import textwrap

import pytest
import torch
from torch import nn

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.tune import stopwatch
from gemmdb.workload import entries


@pytest.fixture
def linear():
    return nn.Linear(64, 32).eval(), torch.randn(8, 64)


def ended(kit, folder, program):
    """Run a program to its end, where gemmdb writes what it counted."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    done = kit.script(path, folder, os.environ)
    assert done.returncode == 0, done.stderr


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
    """
    ended(kit, tmp_path, program)
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
        kit.forked(program)
    (entry,) = entries.read(tmp_path / "killed.jsonl").entries
    assert (entry.problem.k, entry.count) == (3, 1)


MM = (lambda x, w: x @ w, torch.ones(2, 3), torch.ones(3, 4))


def rows_of(entry):
    return {dict(sizes)["m"]: calls for sizes, calls in entry.seen}


@pytest.mark.slow
def test_the_sizes_of_the_calls_are_recorded(kit, tmp_path):
    """One graph serves all of them, and was weighted as if all had the rows of the first call."""

    class Attention(torch.nn.Linear):
        def forward(self, x):
            q = super().forward(x.reshape(-1, 16))
            return q @ q.t()

    with gemmdb.inductor.record(tmp_path / "w.jsonl"), torch.no_grad():
        run = torch.compile(Attention(16, 16, bias=False))
        for rows in (8, 8, 24, 33, 100):
            x = torch.randn(2, rows, 16)
            torch._dynamo.mark_dynamic(x, 1, min=2, max=128)
            run(x)
    found = {entry.computed: entry for entry in entries.read(tmp_path / "w.jsonl").entries}
    assert len(found) == 2
    assert sum(calls for _, calls in found[False].seen) == found[False].calls == 5
    assert rows_of(found[False]) == {16: 2, 64: 2, 256: 1}  # Twice the rows of x: 48 and 66 are near 64.
    assert {dict(sizes)["n"]: calls for sizes, calls in found[True].seen} == {16: 2, 64: 2, 256: 1}


def test_a_forked_child_writes_only_its_own_calls(kit, tmp_path):
    model, *inputs = MM
    with gemmdb.inductor.record(tmp_path / "w.jsonl") as recording:
        run = torch.compile(model)
        for _ in range(3):
            run(*inputs)
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
    kit.compiled(*MM)
    first.stop()
    first.stop()
    kit.compiled(lambda x, w: x @ w, torch.ones(2, 5), torch.ones(5, 4))
    (entry,) = entries.read(tmp_path / "first.jsonl").entries
    assert (entry.problem.k, entry.calls) == (3, 1)
    assert not (tmp_path / "second.jsonl").exists()


def test_calls_after_the_end_of_a_recording_are_not_recorded(kit, tmp_path, monkeypatch):
    monkeypatch.setattr("gemmdb.inductor.observe.recording.INTERVAL_S", 0.0)
    model, *inputs = MM
    run = torch.compile(model)
    with gemmdb.inductor.record(tmp_path / "w.jsonl"):
        run(*inputs)
    run(*inputs)
    (entry,) = entries.read(tmp_path / "w.jsonl").entries
    assert entry.calls == 1


def test_a_workload_that_cannot_be_written_does_not_end_the_program(kit, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with gemmdb.inductor.record(tmp_path / "file" / "workload.jsonl"):
        assert kit.compiled(*MM).shape == (2, 4)
    assert "cannot record" in caplog.text


@pytest.fixture
def captured(linear):
    """The FX graph that Dynamo makes of the model, and its inputs, as a framework's own backend gets them."""
    model, x = linear
    got = []

    def backend(graph, examples):
        got.append((graph, examples))
        return graph.forward

    model.requires_grad_(False)
    torch.compile(model, backend=backend)(x)
    return got[0]


def read(path):
    (entry,) = entries.read(path).entries
    return entry.problem.n, entry.count, entry.calls


def test_a_framework_that_calls_compile_fx(kit, captured, tmp_path):
    graph, examples = captured
    with gemmdb.inductor.record(tmp_path / "w.jsonl"), torch.no_grad():
        from torch._inductor.compile_fx import compile_fx

        run = compile_fx(graph, examples)
        for _ in range(3):
            run(*examples)
    assert read(tmp_path / "w.jsonl") == (32, 1, 3)


@pytest.mark.parametrize("aot", [False, True])
def test_a_framework_that_keeps_compiled_graphs_itself(kit, captured, tmp_path, aot):
    """As vLLM does: `standalone_compile`, files of its own, and a later start that compiles nothing."""
    graph, examples = captured
    caches = torch._inductor.config.patch(fx_graph_cache=True)
    with gemmdb.inductor.record(tmp_path / "cold.jsonl"), torch.no_grad(), caches:
        made = torch._inductor.standalone_compile(graph, examples, dynamic_shapes="from_example_inputs", aot=aot)
        made(*examples)
        made.save(path=str(tmp_path / "kept"), format="binary")
    assert read(tmp_path / "cold.jsonl") == (32, 1, 1)
    kind = type(made) if aot else torch._inductor.CompiledArtifact
    with gemmdb.inductor.record(tmp_path / "warm.jsonl"), torch.no_grad(), caches:
        run = kind.load(path=str(tmp_path / "kept"), format="binary")
        for _ in range(3):
            run(*examples)
    assert read(tmp_path / "warm.jsonl") == (32, 1, 3)


PROGRAM = """
    import multiprocessing, os, sys, torch
    {start}
    def work(rows):
        torch.set_num_threads(1)
        run = torch.compile(lambda x, w: x @ w)
        for _ in range(9):
            run(torch.ones(rows, 8), torch.ones(8, 16))
    process = multiprocessing.get_context("fork").Process(target=work, args=(3,))
    process.start()
    process.join()
    assert process.exitcode == 0
"""


def test_a_forked_worker_of_multiprocessing_writes_at_its_end(kit, tmp_path):
    start = f"import gemmdb.inductor; gemmdb.inductor.record({str(tmp_path / 'w.jsonl')!r})"
    ended(kit, tmp_path, PROGRAM.format(start=start))
    (entry,) = entries.read(tmp_path / "w.jsonl").entries
    assert (entry.count, entry.calls) == (1, 9)


def test_the_times_of_a_forked_worker_are_its_own(kit, tmp_path):
    start = f"from gemmdb.tune import stopwatch; stopwatch.start({str(tmp_path)!r}, False)"
    ended(kit, tmp_path, PROGRAM.format(start=start) + "    work(5)")
    graphs = [graph for path in tmp_path.glob("times-*.json") for graph in json.loads(path.read_text())["graphs"]]
    found = {graph["products"][0]: graph for graph in graphs}
    assert sorted(found) == ["mm 1x3x16x8", "mm 1x5x16x8"]
    assert {(graph["calls"], len(graph["us"]), graph["kernels"]) for graph in found.values()} == {(9, 7, 0)}


def test_calls_of_different_sizes_have_times_of_their_own(kit, tmp_path):
    """The median of calls with 8 and with 100 rows is that of neither."""
    watch = stopwatch.Stopwatch(tmp_path)
    JOURNAL.listeners.append(watch)
    try:
        with gemmdb.inductor.force(kit.ATEN):
            run = torch.compile(lambda x, w: x @ w)
            for rows in (8, 8, 8, 100, 96):
                x = torch.randn(rows, 16)
                torch._dynamo.mark_dynamic(x, 0, min=2, max=128)
                run(x, torch.randn(16, 16))
    finally:
        JOURNAL.listeners.remove(watch)
    watch.write()
    (path,) = tmp_path.glob("times-*.json")
    found = {graph["products"][0]: len(graph["us"]) for graph in json.loads(path.read_text())["graphs"]}
    assert found == {"mm 1x8x16x16": 1, "mm 1x128x16x16": 2}  # The first two calls are left out.
