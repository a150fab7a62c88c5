"""The CPU's measurer with real workers: what a candidate does wrong costs its own row and nothing else."""

from dataclasses import replace

import pytest

from gemmdb.config import ATEN
from gemmdb.generators.cpu.measurer import CpuMeasurer
from gemmdb.generators.cpu.space import AUTO, template
from gemmdb.generators.effort import named
from gemmdb.generators.interfaces import Candidate, Job
from gemmdb.generators.pool import Limits
from gemmdb.measurement import Protocol, Status
from gemmdb.problem import Problem

PROBLEM = Problem.gemm("mm", m=8, n=64, k=64, dtype="fp32", constant_weight=True)
BAD, GOOD = template((1, 2, 1), AUTO), template((2, 1, 1), AUTO)
PROTOCOL = Protocol("host", "hot", 1, 7)
SABOTAGE = """
    import ctypes, os, sys, time

    MODE = os.environ.get("GEMMDB_TEST_SABOTAGE", "")
    if MODE and "gemmdb.generators.worker" in " ".join(getattr(sys, "orig_argv", [])):
        from dataclasses import replace
        import torch
        import gemmdb.generators.cpu.session as session
        from gemmdb.config import ATEN
        original = session.compile_candidate

        def misbehave(calls):
            if MODE == "segfault" or (MODE == "segfault later" and len(calls) > 1):
                ctypes.string_at(0)
            elif MODE == "hang":
                time.sleep(600)
            elif MODE == "memory":
                torch.empty(2**37, dtype=torch.uint8)
            elif MODE == "raise":
                raise ValueError("a bad\\nkernel")

        def compile_candidate(problem, product, config):
            compiled = original(problem, product, ATEN)
            if config.values.get("threads_n") != 2:
                return compiled
            calls = []

            def function(arguments):
                calls.append(1)
                misbehave(calls)
                (result,) = compiled.function(arguments)
                return (result + 0.5 if MODE == "wrong" else result,)

            return replace(compiled, function=function)

        session.compile_candidate = compile_candidate
"""


@pytest.fixture
def sabotaged(importable, monkeypatch):
    """A measurer whose workers misbehave for the config BAD; every other config is ATen in disguise."""
    importable("sitecustomize", SABOTAGE)
    made = []

    def make(mode):
        monkeypatch.setenv("GEMMDB_TEST_SABOTAGE", mode)
        limits = Limits(memory_bytes=2**36)
        made.append(CpuMeasurer(replace(named("quick"), compile_s=60.0), threads=2, compilers=1, limits=limits))
        return made[-1]

    yield make
    for measurer in made:
        measurer.close()


@pytest.mark.parametrize(
    ("mode", "status", "detail"),
    [
        ("segfault", Status.CRASH, "SIGSEGV"),
        ("segfault later", Status.CRASH, "SIGSEGV"),
        ("memory", Status.OOM, "allocate"),
        ("raise", Status.ERROR, "ValueError: a bad kernel"),
        ("wrong", Status.WRONG, "error "),
        ("hang", Status.TIMEOUT, "no answer within"),
    ],
)
def test_a_bad_candidate_costs_one_row(sabotaged, mode, status, detail):
    measurer = sabotaged(mode)
    (alone,) = measurer.measure(PROBLEM, [ATEN], PROTOCOL, 5)
    assert alone.status is Status.OK
    if mode == "hang":
        measurer.effort = replace(measurer.effort, compile_s=3.0)
    outcomes = measurer.measure(PROBLEM, [ATEN, BAD, GOOD], PROTOCOL, 7)
    assert [outcome.config for outcome in outcomes] == [ATEN, BAD, GOOD]
    assert [outcome.status for outcome in outcomes] == [Status.OK, status, Status.OK]
    assert detail in outcomes[1].detail
    assert outcomes[1].times is None
    assert outcomes[2].times.samples == 7
    again = measurer.measure(PROBLEM, [GOOD, BAD], PROTOCOL, 5)
    assert [outcome.status for outcome in again] == [Status.OK, status]


def test_a_candidate_that_fails_to_compile_is_told_by_prepare(sabotaged):
    measurer = sabotaged("segfault")
    measurer.prepare([Job(PROBLEM, PROTOCOL, (Candidate(ATEN), Candidate(GOOD), Candidate(BAD, "illegal")))])
    assert measurer._failed == {}
    other = replace(PROBLEM, m=9, a=replace(PROBLEM.a, layout=replace(PROBLEM.a.layout, align=1)))
    measurer.prepare([Job(other, PROTOCOL, (Candidate(ATEN),))])
    (outcome,) = measurer.measure(other, [ATEN], PROTOCOL, 5)
    assert (outcome.status, "cannot be" in outcome.detail) == (Status.OK, False)


def test_without_a_reference_nothing_can_be_timed(sabotaged):
    impossible = replace(PROBLEM, m=1, n=3, b=replace(PROBLEM.b, layout=replace(PROBLEM.b.layout, order="row")))
    measurer = sabotaged("none")
    outcomes = measurer.measure(impossible, [ATEN, GOOD], PROTOCOL, 5)
    assert [outcome.status for outcome in outcomes] == [Status.ERROR, Status.ERROR]
    assert all("cannot be" in outcome.detail for outcome in outcomes)
