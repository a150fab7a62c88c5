"""What each kernel of gemmdb saves inside a program, and what it saves alone in each state of the cache. Imports
torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from benchmarks.programs import blame
from benchmarks.programs.program import Built, Program, Step
from benchmarks.programs.ways import Way
from benchmarks.programs.work import Job, first_call
from gemmdb.inductor.benchmark import rules
from gemmdb.inductor.benchmark import trial as trials
from gemmdb.inductor.benchmark.confirm import ConfirmJob
from gemmdb.inductor.benchmark.trial import Trial
from gemmdb.inductor.entry import active
from gemmdb.inductor.lower.adapter.state import replaced
from gemmdb.kernels.config import ATEN

LIMIT_S = 60.0
"""What confirming may take here."""
Alone = dict[str, tuple[float, float]]
"""By state of the cache: microseconds of ATen's code and of ours."""


def of(
    job: Job, program: Program, way: Way, built: Built, ours: Step, products: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The GEMMs of `blame.losses`, each with its times alone."""
    lost = blame.losses(replace(job, blame=job.study), program, way, built, ours, products)
    wanted = {one["problem"] for one in lost}
    alone = _alone(job, program, way, built, wanted)
    told = {one["problem"]: one for one in products}
    about = ("rung", "expected_us")
    return [
        {**one, **{name: told[one["problem"]][name] for name in about}, "alone": alone.get(one["problem"]),
         "speedup": told[one["problem"]]["speedup_vs_aten"]}
        for one in lost
    ]  # fmt: skip


def _alone(job: Job, program: Program, way: Way, built: Built, wanted: set[str]) -> dict[str, Alone]:
    """Times of the wanted problems, by their texts: the program is compiled once more, with all of them confirmed."""
    found: dict[str, Alone] = {}
    way.enter(job.place)
    served = active.requested()
    if served is None:
        return found
    policy = replace(served.policy, confirm=True, confirm_s=LIMIT_S)
    asking = served.variant(policy=policy, identity=None, user_table=None)
    with job.in_turns(), _confirming(wanted, found), active.use(asking):
        first_call(program, way, built)
    return found


@contextmanager
def _confirming(wanted: set[str], found: dict[str, Alone]) -> Iterator[None]:
    """Within it, kernels for the wanted problems are confirmed whatever rung they come from, in all states."""
    finish, trial = ConfirmJob.finish, trials.run
    problem = ""

    def is_wanted(decision: Any) -> bool:
        kernel = decision.config not in (None, ATEN) and not decision.branches
        return kernel and decision.problem.text in wanted

    def finishing(self: ConfirmJob) -> Any:
        nonlocal problem
        problem = self.decision.problem.text
        return finish(self)

    def in_all_states(functions: Any, fakes: Any, warm: Sequence[bool], device: torch.device) -> Trial:
        asked = trial(functions, fakes, warm, device)
        found_in = {"program": asked, "cold": trial(functions, fakes, [False] * len(warm), device)}
        with replaced(trials, "preparation", _nothing), replaced(trials, "MAX_COPIES", 1):
            found_in["hot"] = trial(functions, fakes, warm, device)
        if all(one.aten for one in found_in.values()):
            found[problem] = {state: (median(one.aten), median(one.ours)) for state, one in found_in.items()}
        return asked

    with ExitStack() as stack:
        stack.enter_context(replaced(rules, "unmeasured", is_wanted))
        stack.enter_context(replaced(ConfirmJob, "finish", finishing))
        stack.enter_context(replaced(trials, "run", in_all_states))
        yield


def _nothing(*_: Any) -> Callable[[int], object]:
    """A preparation that leaves the cache alone. It does something, since a graph has to hold a kernel."""
    one = torch.zeros((), device="cuda")
    return lambda index: one.zero_()
