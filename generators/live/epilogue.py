"""Products with a pointwise epilogue: what of a measurement holds for an epilogue that was not measured.

The measured epilogue is a relu. The program's may be an exact GELU, or a store to another layout, and ATen's separate
kernel for it may have other work to do anyway. A candidate that beats ATen plus a relu kernel may still lose to ATen in
the program. A candidate that takes no longer, relu included, than ATen's product alone is better evidence: ATen wins
then only if the epilogue costs more inside the kernel than outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemmdb.generators.backend import Candidate, Job, Outcome
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import Status


def alone(job: Job, outcomes: Sequence[Outcome]) -> Job | None:
    """The job that times ATen on the product without its pointwise epilogue; None where nothing depends on it: without
    such an epilogue, or where no candidate beat ATen."""
    aten_us = _us(outcomes)
    others = [o.times.median_us for o in outcomes if o.status is Status.OK and o.times and o.config != ATEN]
    if job.problem.fusion != "pointwise" or aten_us is None or min(others, default=aten_us) >= aten_us:
        return None
    return replace(job, problem=replace(job.problem, fusion="none"), candidates=(Candidate(ATEN),))


def kept(outcomes: Sequence[Outcome], aten: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes without the candidates that take longer, with the epilogue, than ATen's product alone. `aten`: the
    outcomes of `alone`; if ATen was not timed there, no candidate is left."""
    limit_us = _us(aten) or 0.0
    return [o for o in outcomes if o.config == ATEN or o.times is None or o.times.median_us <= limit_us]


def _us(outcomes: Sequence[Outcome]) -> float | None:
    """The median microseconds of ATen, None if it was not timed."""
    return next((o.times.median_us for o in outcomes if o.config == ATEN and o.times), None)
