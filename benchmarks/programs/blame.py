"""Which GEMM makes a program slower with gemmdb than in default mode. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.utils import clear_caches

from benchmarks.programs import choices, timing
from benchmarks.programs.figures import ends
from benchmarks.programs.program import Built, Program, Step
from benchmarks.programs.ways import Way
from benchmarks.programs.work import Job, first_call
from gemmdb.inductor.entry import active
from gemmdb.kernels.config import ATEN

SECONDS = 1.0
"""Of timing, per GEMM."""


def suspects(products: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The GEMMs that another kernel than ATen's solves; those that take the longest in all come first."""
    found = [one for one in products if one["config"] != ATEN.text]
    return sorted(found, key=lambda one: -(one["expected_us"] or 0) * one["count"])[:most]


def losses(
    job: Job, program: Program, way: Way, built: Built, ours: Step, products: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """For each suspect, how many microseconds the program loses by its kernel: the median over the rounds between the
    ends of its interval, of `ours` minus the same program with ATen for that GEMM. Both have the same choices of
    Inductor."""
    cache, found = way.inductor_cache(job.place), list[dict[str, Any]]()
    chosen = choices.known(cache)
    for one in suspects(products, job.blame):
        way.enter(job.place)
        served = active.requested()
        if served is None:
            return found
        with job.in_turns(), active.use(served.with_aten_for([one["problem"]])):
            first_call(program, way, built)
            choices.give(chosen, cache)
            clear_caches()
            torch._dynamo.reset()
            run, _, _ = first_call(program, way, built)
            spared = timing.capture(run)
        with job.using(alone=True):
            taken = timing.in_turn({"ours": ours, "spared": spared}, SECONDS, job.device)
        lost = ends([mine - other for mine, other in zip(taken["ours"], taken["spared"], strict=True)])
        found.append({"problem": one["problem"], "config": one["config"], "count": one["count"], "lost_us": lost})
    return found
