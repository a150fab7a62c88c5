"""How long a build takes, in seconds, before it begins and while it runs. The only place with such figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import ceil

from gemmdb.cost.roofline import work_us
from gemmdb.generators.backend import Backend, Job
from gemmdb.generators.effort import Effort
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

MAX_COMPILERS = 8
"""Most processes in which a CPU's candidates are compiled."""
MAX_OVERRUN = 0.1
"""Most that a build or `verify` may exceed its time limit, relative, as far as the pace so far tells."""
ENDED = 1 + MAX_OVERRUN / 2
"""Part of a time limit after which what still runs is ended. Its processes need a moment to end."""
PATIENCE_S = 15.0
"""Most seconds that a build, or a sample of `verify`, waits for a quiet machine in total while it measures."""
NVCC_S = 70.0
"""Seconds that nvcc takes for a CUTLASS kernel while it compiles others: 64 to 74 in
`benchmarks/results/h200/dense/built-2026-11-28e.jsonl.xz`. Meanwhile a GPU measures the GEMMs that need none."""
GROUPED = 1.7
"""How many times as long a GPU takes for a candidate of grouped_mm: it is checked and timed with several splits of its
rows. 1.4 and 2.0 in the last two builds of `benchmarks/results/h200/2026-11-22/build.json`."""
CALL_S = 0.008
"""Seconds per timed call on a CPU besides the call: the caches are emptied before it."""


@dataclass(frozen=True)
class Rates:
    """Seconds on an idle machine. `start_s`: imports and first processes; `cold_s`: to prepare an empty cache of the
    compiler; `problem_s`: per problem, whatever its candidates; `compile_s`: processor time to compile a template,
    `cached_s` for a candidate that has none or that an earlier run has compiled; `candidate_s`: to load, check and time
    one; `library_s`: the same for one of a library, which is not compiled; `confirm_s`: to confirm a winner in a new
    process, 0 if `candidate_s` contains that; `call_s`: per timed call besides the call."""

    start_s: float
    cold_s: float = 0.0
    problem_s: float = 0.0
    compile_s: float = 0.0
    cached_s: float = 0.0
    candidate_s: float = 0.0
    library_s: float = 0.0
    confirm_s: float = 0.0
    call_s: float = 0.0

    def scaled(self, factor: float) -> Rates:
        """Return the rates of a machine on which everything takes `factor` times as long."""
        return Rates(*(factor * seconds for seconds in astuple(self)))


RATES = {
    "cpu": Rates(
        14.0, cold_s=12.0, problem_s=1.0, compile_s=3.2, cached_s=0.6, candidate_s=0.7, confirm_s=4.5, call_s=CALL_S
    ),
    "quick": Rates(start_s=20.0, candidate_s=0.048, library_s=0.0145),
    "standard": Rates(start_s=20.0, candidate_s=0.048, library_s=0.0145),
    "lean": Rates(start_s=20.0, candidate_s=0.0145, library_s=0.0145),
    "full": Rates(start_s=20.0, candidate_s=0.096, library_s=0.029),
}
"""For a CPU (two cores of an EPYC), and for a GPU by effort (`benchmarks/results/h200/2026-11-22/build.json`). `full`
was not recorded: it takes twice as many samples as `standard`. Most candidates of `lean` are cuBLASLt's."""
_ALGORITHM = Config.of(
    "cublaslt", "matmul", algo=0, tile=0, stages=0, split_k=1, reduction=0, swizzle=0, custom=0, inner=0, cluster=0
)
"""Any algorithm of cuBLASLt: which problems it solves does not depend on its attributes."""


def rates(backend: Backend, effort: Effort) -> Rates:
    """Return the rates for builds on a backend's device, here."""
    return RATES["cpu" if backend.device.kind == "cpu" else effort.name].scaled(backend.slowness())


def start_s(backend: Backend, effort: Effort, slower: float = 1.0) -> float:
    """Return the seconds until a build measures its first problem, besides compiling it. `slower`: how many times as
    long as on an idle machine everything takes, see `Backend.slowdown`; it then also waits for a quiet one."""
    rate = rates(backend, effort)
    return slower * (rate.start_s + rate.cold_s * backend.cold()) + patience_s(slower)


def patience_s(slower: float) -> float:
    """Return the seconds that a build or a sample of `verify` waits for a quiet machine while it measures."""
    return PATIENCE_S if slower > 1 else 0.0


def job_s(job: Job, backend: Backend, effort: Effort) -> float:
    """Return the seconds that one worker takes for a job, with its confirmation."""
    if job.searched:
        return confirm_s(job, backend, effort)
    rate, configs, problem, device = rates(backend, effort), job.legal, job.problem, backend.device
    proposed = 0 if _ALGORITHM.rejection(problem, device) else effort.proposals + effort.neighbours
    tried, kept = len(configs) + proposed, min(len(configs), max(effort.keep, 2))
    library = proposed + sum(config.spec.library for config in configs)
    tries_s = (rate.candidate_s * (tried - library) + rate.library_s * library) * _slowness(problem, device)
    search_s = rate.problem_s + compile_s(problem, configs, backend, effort) + tries_s
    times_s = _timed_s(problem, tried, effort.estimate, device, rate) + _timed_s(
        problem, kept, effort.samples, device, rate
    )
    return search_s + times_s + confirm_s(job, backend, effort)


def confirm_s(job: Job, backend: Backend, effort: Effort) -> float:
    """Return the seconds to confirm the winner of a job, if that may be another than ATen."""
    found = {*job.legal, *(outcome.config for outcome in job.searched)} - {ATEN}
    rate = rates(backend, effort)
    if not (effort.confirm and found):
        return 0.0
    if not rate.confirm_s:  # A GPU's rates per candidate contain it; here it is all that is left.
        timed_s = rate.candidate_s * (1 + effort.rivals) * _slowness(job.problem, backend.device)
        return timed_s if job.searched else 0.0
    return rate.confirm_s + _timed_s(job.problem, 2, effort.samples, backend.device, rate)


def problem_s(problem: Problem, backend: Backend, effort: Effort) -> float:
    """Return the seconds that one worker takes for all jobs of a problem."""
    candidates = tuple(backend.space.candidates(problem, backend.device, effort))
    return sum(job_s(Job(problem, protocol, candidates), backend, effort) for protocol in backend.protocols(effort))


def _slowness(problem: Problem, device: Device) -> float:
    """Return how many times as long a candidate takes as one of another op."""
    return GROUPED if problem.ragged and device.kind == "cuda" else 1.0


def retimed_s(problem: Problem, configs: Sequence[Config], samples: int, backend: Backend, effort: Effort) -> float:
    """Return the seconds to time some compiled configs of a problem again, as `verify --remeasure` does."""
    rate = rates(backend, effort)
    load_s = rate.problem_s + rate.candidate_s * len(configs) * _slowness(problem, backend.device)
    return load_s + _timed_s(problem, len(configs), samples, backend.device, rate)


def compile_s(
    problem: Problem, configs: Sequence[Config], backend: Backend, effort: Effort, apart: bool = False
) -> float:
    """Return the seconds to compile configs, with all compilers, as far as no earlier run has. `apart`: nothing else is
    compiled meanwhile, so that the last one keeps the other compilers waiting."""
    rate = rates(backend, effort)
    if not rate.compile_s:  # A GPU's candidates are compiled while others are timed.
        return 0.0
    compilers = max(min(backend.device.units, MAX_COMPILERS), 1)
    # ATen has no template to compile, also with symbolic rows.
    templates = [one for one in configs if one != ATEN and not one.spec.measured_only]
    fresh = sum(not backend.compiled(problem, one) for one in templates)
    turns = ceil(fresh / compilers) if apart else fresh / compilers
    return turns * rate.compile_s + (len(configs) - fresh) / compilers * rate.cached_s


def _timed_s(problem: Problem, configs: int, samples: int, device: Device, rate: Rates) -> float:
    return configs * samples * (work_us(problem, device) * 1e-6 + rate.call_s)
