"""What a measuring process of `measure` does with one problem: prepare each rival, check it, time all in turn. Imports
torch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.compiling import Call, settled
from benchmarks.dense.ways import compile_all, ways
from benchmarks.dense.worker import DIGITS, unrolled
from benchmarks.interleaved import replayed
from benchmarks.peers.case import Case, Made, Unfit
from benchmarks.peers.rivals import Rival
from gemmdb.generators.measure.correctness import Reference
from gemmdb.generators.measure.cuda.backend import VERSION
from gemmdb.generators.measure.cuda.bench import alive, capture
from gemmdb.generators.measure.tolerance import tolerance
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, one_line

RIVAL_S, SLOW_S = 100.0, 300.0
"""Seconds that a rival may take to pack, compile, tune and run once; those of a slow one."""
STUCK = 75
"""The exit code of a process whose rival took longer."""
Begin = Callable[[str], None]
"""Is told each rival that begins, so that a process that dies can be blamed on it."""


def measure(
    problem: Problem, rivals: Sequence[Rival], samples: int, folder: Path, begin: Begin
) -> dict[str, Any]:  # fmt: skip
    """The result of a problem, JSON-ready: `taken`, microseconds in each round by name; `ways`, the facts of each, with
    a `failure` if it has no times; `program`, what torch and gemmdb compute if it has more rows. `folder`: a new one,
    for user tables. `fatal`: this process cannot measure any more."""
    try:
        case = Case.of(problem)
        assert case.bench is not None
        program, sets = case.program
        begin("gemmdb")
        calls, facts = compile_all(program, sets, case.bench.expected[0], ways(None), problem.key % 2 == 1, folder)
        expected = case.expected
        for rival in rivals:
            begin(rival.name)
            with deadline(SLOW_S if rival.slow else RIVAL_S):
                call, facts[rival.name] = ready(rival, case, expected)
            if call is not None:
                calls[rival.name] = call
        begin("")
        protocol = Protocol("graph", "cold", unrolled(problem), samples, version=VERSION)
        taken = replayed(graphs(calls, len(sets), protocol, facts), protocol)
    except Exception as error:
        return {"failure": one_line(f"{type(error).__name__}: {error}"), "fatal": not alive()}
    rounded = {name: [round(one, DIGITS) for one in times] for name, times in taken.items()}
    found = {"tolerance": tolerance(problem), "ways": facts, "taken": rounded, "unroll": protocol.unroll}
    return found if program == problem else {**found, "program": program.text}


def ready(rival: Rival, case: Case, expected: Sequence[Reference]) -> tuple[Call | None, dict[str, Any]]:
    """A rival's call, None if it failed, and its facts: `inexact` is the error of its usual mode if that was too large
    and its exact mode runs instead. Raises what means that this process cannot go on."""
    start = time.perf_counter()
    facts: dict[str, Any] = {}
    if rival.missing:
        return None, {"failure": rival.missing}
    try:
        made: Made = rival.load()(case)
        worst = error(made, len(case.sets), expected)
        if rival.exact and not worst <= tolerance(case.problem):
            facts["inexact"] = worst
            made = replace(rival, adapter=rival.exact).load()(case)
            worst = error(made, len(case.sets), expected)
    except Exception as problem:
        settled()
        kind = "" if isinstance(problem, Unfit) else f"{type(problem).__name__}: "
        return None, {"failure": one_line(f"{kind}{problem}"), "seconds": time.perf_counter() - start}
    facts |= {"error": worst, "seconds": time.perf_counter() - start, "version": rival.version}

    def call(index: int) -> None:
        made.call(index)

    return call, facts


def graphs(
    calls: Mapping[str, Call], copies: int, protocol: Protocol, facts: Mapping[str, dict[str, Any]]
) -> dict[str, torch.cuda.CUDAGraph]:  # fmt: skip
    """The CUDA graph of each call. A call that cannot be captured gets a failure among its facts and no graph."""
    found = {}
    for name, call in calls.items():
        try:
            found[name] = capture(call, protocol, copies)
        except Exception as problem:
            settled()
            facts[name]["failure"] = one_line(f"no CUDA graph: {type(problem).__name__}: {problem}")
    return found


def error(made: Made, copies: int, expected: Sequence[Reference]) -> float:
    """The largest error of runs on one copy per reference, the first of them twice, and on the last copy."""
    made.call(0)
    found = []
    for index in dict.fromkeys((*range(min(len(expected), copies)), copies - 1)):
        exact = expected[index % len(expected)]
        product = made.product(made.call(index), index).reshape(exact.sizes)
        found.append(float(exact.error(product)))
    return max(found)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """End this process if the body takes longer. Compilers and kernels that hang cannot be interrupted."""
    timer = threading.Timer(seconds, os._exit, [STUCK])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def warm(problem: Problem, rivals: Sequence[Rival]) -> str:
    """Compile what rivals compile for a problem, so that it lies in their caches; says what failed."""
    case = Case.of(problem)
    expected = case.expected
    # A copy of each split: the sizes of groups can choose a kernel.
    case = replace(case, sets=case.sets[: len(expected)])
    failed = []
    for rival in rivals:
        with deadline(RIVAL_S):
            call, facts = ready(rival, case, expected)
        if call is None:
            failed.append(f"{rival.name}: {facts['failure']}")
    return "; ".join(failed)
