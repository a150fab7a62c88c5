"""What one measuring process does: the cold compile of one way, or the warm compiles and the timing of all ways."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import time
from typing import Any

import torch
from torch._dynamo.utils import compilation_time_metrics

from benchmarks.common import software
from benchmarks.programs import as_run, choices, locks, retuning, timing
from benchmarks.programs.failures import exception
from benchmarks.programs.figures import slower
from benchmarks.programs.program import Built, Program, Step
from benchmarks.programs.suite import suite
from benchmarks.programs.ways import WAYS, Way, statistics_of
from benchmarks.programs.work import Job, answered, distance, emptied, first_call, reference, why_not

BLOCKS = 5
"""Steps that cannot be captured are timed in so many blocks of each way. The host takes part in such a step, and its
speed changes more from block to block than within one, so a block counts as one time: its median."""
LEAST_S = 0.005
"""Phases of torch that take less are left out."""


def cold(job: Job) -> dict[str, Any]:
    """The seconds of a program's first call with empty caches, and of importing gemmdb. Those in which its timings
    waited for timings of other programs are counted apart."""
    program, way = suite(job.source)[job.program], WAYS[job.ways[0]]
    if why := why_not(program, job.device):
        return {"skipped": why}
    os.environ.update(way.environment(job.place))
    with torch.set_grad_enabled(program.grad):
        with job.using(alone=False):
            built = _begun(program, job)
        with job.using(alone=True):
            answered(built)
            emptied()
        start = time.perf_counter()
        way.enable()
        enabling_s = time.perf_counter() - start
        compilation_time_metrics.clear()  # What was compiled before is no part of it.
        with job.in_turns() as turns:
            _, _, seconds = first_call(program, way, built)
    found = {"cold_s": enabling_s + seconds - turns.waited_s, "enabling_s": enabling_s, "waited_s": turns.waited_s}
    return {**found, "torch_s": _phases(), **_descents(), **_stats("stats", way)}


def _phases() -> dict[str, float]:
    """The seconds of torch's own phases of the cold compile, which nest."""
    found = {name: sum(each) for name, each in compilation_time_metrics.items()}
    return {name: round(seconds, 4) for name, seconds in found.items() if seconds >= LEAST_S}


def _descents() -> dict[str, int]:
    """How many configs coordinate descent has timed in this process, if any: most of a compile, where it is on."""
    from torch._dynamo.utils import counters

    count = counters["inductor"]["coordesc_tuning_bench"]
    return {"descents": count} if count else {}


def warm(job: Job) -> dict[str, Any]:
    """Compile in all ways from the caches that the cold compiles left, then time all of them in turn."""
    from benchmarks.programs import blame, study  # They import gemmdb, whose seconds are part of a cold compile.

    program = suite(job.source)[job.program]
    if why := why_not(program, job.device):
        return {"skipped": why}
    found: dict[str, Any] = {**software(), "torch": torch.__version__}
    with torch.set_grad_enabled(program.grad), retuning.once():
        with job.using(alone=False):
            built = _begun(program, job)
        if anew := _choose(job, program, built):
            found["compiled_anew"] = anew
        with job.in_turns() as turns:
            runs, found["ways"], why = _all(job, program, built, turns)
        if why:
            found["clock"] = f"one run after the other: {why}"
            return {**found, "taken": _blocks(job, program, built, list(runs))}
        found["clock"] = "graph"
        with job.using(alone=True):
            found["taken"] = timing.in_turn(runs, job.seconds, job.device) if runs else {}
        blamed = next((name for name in runs if WAYS[name].gemmdb and slower(found, name)), None)
        if job.blame and blamed:
            products = found["ways"][blamed]["warm_stats"]["products"]
            found["blame"] = blame.losses(job, program, WAYS[blamed], built, runs[blamed], products)
        if job.study and "gemmdb" in runs:
            products = found["ways"]["gemmdb"]["warm_stats"]["products"]
            found["study"] = study.of(job, program, WAYS["gemmdb"], built, runs["gemmdb"], products)
        good = tuple(runs)
        runs.clear()  # Their graphs keep memory.
        return {**found, **_as_run(dataclasses.replace(job, ways=good), program, built)}


def _as_run(job: Job, program: Program, built: Built) -> dict[str, Any]:
    """The times of the steps without a CUDA graph, or why there are none."""
    try:
        return {"as_run": as_run.times(job, program, built)} if job.ways else {}
    except Exception as error:
        return {"no_as_run": exception(error)}


def _begun(program: Program, job: Job) -> Built:
    """The program in memory. What every process pays once is no part of a compile, so something is compiled before.
    gemmdb's share of that does count: it is not loaded yet."""
    torch.compile(lambda t: t + 1)(torch.ones(8, device=job.device))
    return program.make(job.size, job.device)


def _choose(job: Job, program: Program, built: Built) -> list[str]:
    """Compile in the first way, and let the other ways have what Inductor chose by timing in it; anew if its timings
    did not wait for their turn. A process also pays here for what all ways share. Returns the ways whose graphs are
    compiled anew then."""
    first, *others = (WAYS[name] for name in job.ways)
    caches = [way.inductor_cache(job.place) for way in (first, *others)]
    if job.crowded:
        choices.forget(caches[0])
    _compile(job, program, first, built)
    anew = choices.share_paddings(caches[0], caches[1:])
    padded = [way for way, cache in zip(others, caches[1:], strict=True) if cache in anew]
    for way in padded:
        _compile(job, program, way, built)
    choices.share(caches[0], caches[1:])
    return [way.name for way in padded]


def _compile(job: Job, program: Program, way: Way, built: Built) -> None:
    """Fill the caches of a way. `_all` reports what fails."""
    with job.in_turns(), contextlib.suppress(Exception):
        way.enter(job.place)
        first_call(program, way, built)


def _all(job: Job, program: Program, built: Built, turns: locks.Turns) -> tuple[dict[str, Step], dict[str, Any], str]:
    """The steps that can be timed, what became of each way, and why the steps are not captured, if they are not. The
    seconds of waiting for timings of other programs are no part of a warm compile."""
    from gemmdb.inductor.entry.compare import difference

    runs: dict[str, Step] = {}
    with job.using(alone=True):
        wanted = reference(built)
        facts: dict[str, Any] = {"eager": {"error": distance(wanted, answered(built))}}
        emptied()
    why = "a CPU has no graphs" if job.device == "cpu" else program.uncaptured
    for name in job.ways:
        way = WAYS[name]
        try:
            way.enter(job.place)
            waited_s = turns.waited_s
            runs[name], answer, seconds = first_call(program, way, built)
            seconds -= turns.waited_s - waited_s
            errors = {"error": distance(wanted, answer), "worst": difference(wanted, answer)}
            facts[name] = {"warm_s": seconds, **errors, **_stats("warm_stats", way)}
            del answer
        except Exception as error:
            runs.pop(name, None)
            facts[name] = {"failure": exception(error)}
            continue
        if not why:
            try:
                runs[name] = timing.capture(runs[name])
            except Exception as error:
                why = f"{name} cannot be captured: {exception(error)}"
    return runs, facts, why


def _blocks(job: Job, program: Program, built: Built, names: list[str]) -> dict[str, list[float]]:
    """Times of steps that cannot be captured. Only one way can be compiled at a time, so the ways take turns in
    blocks."""
    taken: dict[str, list[float]] = {name: [] for name in names}
    for index in range(BLOCKS):
        for name in names if index % 2 else reversed(names):
            with job.in_turns():
                WAYS[name].enter(job.place)
                run, _, _ = first_call(program, WAYS[name], built)
            with job.using(alone=True):
                times = timing.in_turn({name: run}, job.seconds / BLOCKS / len(names), job.device)[name]
            taken[name].append(statistics.median(times))
    return taken


def _stats(name: str, way: Way) -> dict[str, Any]:
    found = statistics_of(way)
    return {name: found} if found else {}
