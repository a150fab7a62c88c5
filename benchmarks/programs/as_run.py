"""Time the steps of a program as its user runs them: without a CUDA graph, the host's time included. Imports torch."""

from __future__ import annotations

import dataclasses
import gc
import os

from benchmarks.programs import timing
from benchmarks.programs.program import Built, Program, Step
from benchmarks.programs.ways import WAYS
from benchmarks.programs.work import Job, emptied, first_call


def times(job: Job, program: Program, built: Built) -> dict[str, list[float]]:
    """Microseconds of each way's step in each round. All ways are compiled, from the caches that the job has, and stay
    so: rounds in turn resolve smaller differences than blocks, since the speed of a host changes within seconds."""
    gc.collect()
    emptied()
    WAYS["default"].enter()
    with job.in_turns():
        runs = {name: _compiled(job, program, name, built) for name in job.ways}
    with job.using(alone=True):
        return timing.in_turn(runs, job.seconds, job.device)


def _compiled(job: Job, program: Program, name: str, built: Built) -> Step:
    way = dataclasses.replace(WAYS[name], beside=True)
    os.environ.update(way.environment(job.place))
    return first_call(program, way, built)[0]
