"""Live tuning plan for one problem: which candidates to try, with how many samples, and which results count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemmdb.cost.roofline import roofline_us
from gemmdb.generators import effort
from gemmdb.generators.backend import Backend, Candidate, Job, Outcome
from gemmdb.generators.effort import SAMPLE_US, Effort
from gemmdb.inductor.benchmark.client import Request
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus import inductor as inductor_menu
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import compile_cost_rejection, policy_rejection
from gemmdb.lookup.ranking import LIVE_CANDIDATES
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Protocol, Status

FEWEST_SAMPLES = 7
_FEWEST_ROUNDS = FEWEST_SAMPLES + 3
"""Rounds of a measurement, including the estimate before it."""
OVERHEAD_US = {"cpu": 8000.0, "cuda": 60.0}
"""Overhead of a timed call in microseconds: the cache flush."""
BEYOND_ROOF = 4.0
"""Assumed longest time of a candidate, in multiples of the roofline."""
LARGE_BEYOND_ROOF = 1.5
"""The same for a problem so large that it may exceed the budget."""


def job(request: Request, backend: Backend) -> Job:
    """Return a build's job: ATen and the legal candidates, as many as fit into the budget."""
    problem, device = request.problem, backend.device
    chosen = effort.named("quick", device.kind)
    protocol = backend.protocols(chosen)[0]
    room = int(request.budget_s / _seconds(problem, backend, protocol, LARGE_BEYOND_ROOF) / _FEWEST_ROUNDS) - 1
    most = max(min(room, LIVE_CANDIDATES), 0)
    configs: Sequence[Config] = request.candidates
    if not configs:
        configs = [one.config for one in backend.space.candidates(problem, device, chosen) if not one.rejected]
    tried = list(dict.fromkeys(config for config in configs if _allowed(config, request, backend)))[:most]
    if device.kind == "cuda" and most:
        # gemmdb keeps Inductor's own pass from timing padded GEMMs, which a build tries where rows are misaligned. The
        # first is what that pass would run, the last has the largest multiple.
        padded = [config for config in inductor_menu.configs(problem, device) if config.kernel == "padded"]
        padded = [config for config in padded if _allowed(config, request, backend)]
        padded = list(dict.fromkeys((*padded[:1], *padded[-1:])))[:most]
        tried = [*[config for config in tried if config not in padded][: most - len(padded)], *padded]

    def accepts(config: Config) -> bool:
        return most > 0 and _allowed(config, request, backend)

    return Job(problem, protocol, (Candidate(ATEN), *map(Candidate, tried)), accepts=accepts)


def rejection(one: Job, request: Request, backend: Backend) -> Rejected | None:
    """Return why a job is not measured: the budget has time for ATen only."""
    once = _seconds(one.problem, backend, one.protocol, LARGE_BEYOND_ROOF)
    if len(one.candidates) > 1 or 2 * _FEWEST_ROUNDS * once <= request.budget_s:
        return None
    return Rejected(f"ATen and one more would take longer than {request.budget_s:g} s of the device")


def _allowed(config: Config, request: Request, backend: Backend) -> bool:
    policy = request.policy
    policy = replace(policy, compile_cost=min(policy.compile_cost, policy.live_cost))
    if config == ATEN or policy_rejection(config, policy, request.problem) or compile_cost_rejection(config, policy):
        return False
    return config.rejection(request.problem, backend.device) is None


def _seconds(problem: Problem, backend: Backend, protocol: Protocol, beyond_roof: float) -> float:
    """Return the device seconds of one sample of one candidate."""
    kind = backend.device.kind
    call_us = beyond_roof * roofline_us(problem, backend.device)
    calls = min(protocol.unroll, max(SAMPLE_US / call_us, 1.0)) if kind == "cuda" else protocol.unroll
    return calls * (call_us + OVERHEAD_US.get(kind, 0.0)) / 1e6


def within(request: Request, backend: Backend, one: Job) -> Effort:
    """Return the effort `quick` with its samples reduced to the budget."""
    chosen = effort.named("quick", backend.device.kind)
    tried = len(one.candidates) + chosen.proposals + chosen.neighbours
    sample_s = _seconds(request.problem, backend, one.protocol, BEYOND_ROOF)
    left_s = request.budget_s - tried * chosen.estimate * sample_s
    fits = int(left_s / (min(tried, chosen.keep) * sample_s))
    return replace(chosen, samples=max(FEWEST_SAMPLES, min(chosen.samples, fits)))


# An epilogue is measured as a relu. The program's may be an exact GELU, or a store to another layout, and ATen's
# separate kernel for it may have other work to do anyway. A candidate that beats ATen plus a relu kernel may still lose
# to ATen in the program. One that takes no longer, relu included, than ATen's GEMM alone is better evidence: ATen wins
# then only if the epilogue costs more inside the kernel than outside.


def without_epilogue(one: Job, outcomes: Sequence[Outcome]) -> Job | None:
    """Return the job that times ATen on the GEMM without its pointwise epilogue; None if there is no such epilogue, or
    no candidate beat ATen."""
    aten_us = _aten_us(outcomes)
    others = [o.times.median_us for o in outcomes if o.status is Status.OK and o.times and o.config != ATEN]
    if one.problem.fusion != "pointwise" or aten_us is None or min(others, default=aten_us) >= aten_us:
        return None
    return replace(one, problem=replace(one.problem, fusion="none"), candidates=(Candidate(ATEN),))


def believed(outcomes: Sequence[Outcome], aten_alone: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes without the candidates that, with the epilogue, are slower than ATen's GEMM alone.
    `aten_alone`: outcomes of `without_epilogue`; if ATen was not timed there, no candidate remains."""
    limit_us = _aten_us(aten_alone) or 0.0
    return [o for o in outcomes if o.config == ATEN or o.times is None or o.times.median_us <= limit_us]


def _aten_us(outcomes: Sequence[Outcome]) -> float | None:
    """Return the median microseconds of ATen, or None if it was not timed."""
    return next((o.times.median_us for o in outcomes if o.config == ATEN and o.times), None)
