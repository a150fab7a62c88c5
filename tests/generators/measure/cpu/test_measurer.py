"""The CPU's measurer with real processes: what a candidate does wrong costs its own row and nothing else."""

from dataclasses import replace

import pytest

from gemmdb.generators.backend import Candidate, Job, Outcome
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cpu.measurer import CpuMeasurer
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.inductor.lower.adapter import vector_units
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import PING, Limits
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Protocol, Status

PROBLEM = Problem.gemm("mm", m=8, n=64, k=64, dtype="fp32", constant_weight=True)
PROTOCOL = Protocol("host", "hot", 1, 7)
MODES = ("good", "segfault", "segfault later", "memory", "raise", "wrong", "hang", "raise at once")
GOOD, SEGFAULT, LATER, MEMORY, RAISE, WRONG, HANG, AT_ONCE = (template(AUTO, (1 + i, 1, 1)) for i in range(len(MODES)))
SABOTAGE = f"""
    import ctypes, sys, time

    if "gemmdb.processes" in " ".join(getattr(sys, "orig_argv", [])):
        from dataclasses import replace
        import torch
        import gemmdb.generators.measure.cpu.session as session
        from gemmdb.kernels.config import ATEN
        original = session.compile_candidate

        def misbehave(mode, calls):
            if mode == "segfault" or (mode == "segfault later" and calls > 1):
                ctypes.string_at(0)
            elif mode == "hang":
                time.sleep(600)
            elif mode == "memory":
                torch.empty(2**37, dtype=torch.uint8)
            elif mode == "raise":
                raise ValueError("a bad\\nkernel")

        def compile_candidate(problem, product, config):
            compiled = original(problem, product, ATEN)
            mode = {MODES!r}[max(config.values.get("blocks_m", 1), 1) - 1]
            if mode == "raise at once":
                raise RuntimeError("it does not compile")
            calls = []

            def function(arguments):
                calls.append(1)
                misbehave(mode, len(calls))
                (result,) = compiled.function(arguments)
                return (result + 0.5 if mode == "wrong" else result,)

            return replace(compiled, function=function)

        session.compile_candidate = compile_candidate
"""


@pytest.fixture
def measurer(importable, vector_units):
    """A measurer in whose processes each config but ATen misbehaves in its own way, and is ATen in disguise
    otherwise."""
    importable("sitecustomize", SABOTAGE)
    limits = Limits(memory_bytes=2**36)
    made = CpuMeasurer(replace(named("quick"), compile_s=60.0), threads=2, compilers=1, limits=limits)
    yield made
    made.close()


@pytest.mark.slow
def test_each_bad_candidate_costs_its_own_row_and_a_bad_problem_its_own_rows(measurer):
    configs = [ATEN, SEGFAULT, LATER, MEMORY, RAISE, WRONG, GOOD]
    outcomes = {outcome.config: outcome for outcome in measurer.measure(PROBLEM, configs, PROTOCOL, 7)}
    assert list(outcomes) == configs
    statuses = [Status.OK, Status.CRASH, Status.CRASH, Status.OOM, Status.ERROR, Status.WRONG, Status.OK]
    assert [outcome.status for outcome in outcomes.values()] == statuses
    assert "SIGSEGV" in outcomes[SEGFAULT].detail
    assert "allocate" in outcomes[MEMORY].detail
    assert outcomes[RAISE].detail == "ValueError: a bad kernel"
    assert outcomes[WRONG].error > 0.01
    assert (outcomes[GOOD].times.samples, outcomes[ATEN].times.samples) == (7, 7)

    # Without a reference nothing can be timed, and the next problem is measured as before.
    impossible = replace(PROBLEM, m=1, n=3, b=replace(PROBLEM.b, layout=replace(PROBLEM.b.layout, order="row")))
    untimed = measurer.measure(impossible, [ATEN, GOOD], PROTOCOL, 5)
    assert [outcome.status for outcome in untimed] == [Status.ERROR, Status.ERROR]
    assert all("cannot be" in outcome.detail for outcome in untimed)

    # After the hang the others are compiled anew, in a process that has compiled nothing before: that takes seconds.
    measurer.effort = replace(measurer.effort, compile_s=12.0)
    again = measurer.measure(PROBLEM, [GOOD, HANG, RAISE], PROTOCOL, 5)
    assert [outcome.status for outcome in again] == [Status.OK, Status.TIMEOUT, Status.ERROR]
    assert again[1].detail == "no answer within 12 s"


@pytest.mark.parametrize(
    ("status", "others"),
    [(Status.OOM, Status.OOM), (Status.TIMEOUT, Status.TIMEOUT), (Status.CRASH, Status.ERROR)],
)
def test_where_the_reference_was_killed_all_are_tried_again(status, others):
    """An error would count as a try that failed for good."""
    measurer = CpuMeasurer(named("quick"), threads=1, compilers=1)
    try:
        measurer._current, measurer._loaded = PROBLEM, {GOOD: 0.0}
        measurer._failed[PROBLEM, ATEN] = Outcome(ATEN, status, detail="the process was ended by SIGKILL")
        outcomes = measurer.measure(PROBLEM, [ATEN, GOOD], PROTOCOL, 5)
        assert [outcome.status for outcome in outcomes] == [status, others]
    finally:
        measurer.close()


@pytest.mark.slow
def test_what_does_not_compile_is_not_tried_again(measurer):
    assert measurer._timer.first == PING
    noted = []
    measurer.note = noted.extend
    measurer.prepare(
        [Job(PROBLEM, PROTOCOL, (Candidate(ATEN), Candidate(AT_ONCE), Candidate(SEGFAULT, Rejected("illegal"))))]
    )
    assert noted == [(PROBLEM, ATEN)]
    (timer,) = {measurer._timer.pid}
    (outcome,) = measurer.measure(PROBLEM, [AT_ONCE], PROTOCOL, 5)
    assert timer is None
    # What the process that compiled has found out of the CPU, the one that times need not.
    assert (measurer._timer.first == PING) != vector_units.all_usable()
    assert measurer._timer.call(60, vector_units.all_usable).value == vector_units.all_usable()
    assert (outcome.status, outcome.detail) == (Status.ERROR, "RuntimeError: it does not compile")
