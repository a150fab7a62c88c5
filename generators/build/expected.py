"""How long a run of a build takes, before it begins."""

from __future__ import annotations

from collections.abc import Sequence

from gemmdb.generators import estimate
from gemmdb.generators.backend import Backend, Job
from gemmdb.generators.effort import Effort
from gemmdb.generators.progress import Expected
from gemmdb.key.problem import Problem


def expected_of(
    jobs: Sequence[Job], more: Sequence[Problem], backend: Backend, effort: Effort, count: int,
    factors: tuple[float, float],
) -> Expected:  # fmt: skip
    """Return how long jobs take with at most `count` workers. `more`: problems of a further round that may follow,
    which starts new processes. `factors`: how many times as long as expected an earlier run took, and how many times as
    long as on an idle machine this one takes."""
    pace, slowdown = factors
    slower = pace * slowdown
    workers = max(min(count, len(jobs)), 1)
    start_s = pace * estimate.start_s(backend, effort, slowdown)
    more_s = slower * sum(estimate.problem_s(problem, backend, effort) for problem in more)
    turns, waiting = backend.awaited(jobs)
    return Expected(
        start_s if jobs else 0.0,
        [(job.problem, slower * estimate.job_s(job, backend, effort)) for job in jobs],
        workers,
        ahead=workers if backend.overlap else min(backend.chunk, len(jobs)),
        more_s=more_s + workers * start_s if more else 0.0,
        slower=slowdown,
        compiled_s=slower * turns * estimate.NVCC_S,
        waiting=waiting,
    )
