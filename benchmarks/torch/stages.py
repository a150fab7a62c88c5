"""The work of `search`: one search of cuBLASLt's algorithms, its seconds by stage, and its result. Imports torch."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.inductor.benchmark import algorithm_jobs, algorithm_trial, trial
from gemmdb.inductor.benchmark.algorithm_trial import Operands
from gemmdb.inductor.benchmark.limits import EXTENTS, Extent
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus import cublaslt
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup.ask import Ask
from gemmdb.settings import Policy
from gemmdb.table.measurement import one_line

ESTIMATES = "estimates"
STAGES: dict[str, tuple[Any, str]] = {
    "operands": (algorithm_trial, "inputs"),
    "preparation": (trial, "preparation"),
    "heuristic": (algorithm_trial._Algorithms, "suggested"),
    "near": (algorithm_trial._Algorithms, "near"),
    "loading": (algorithm_trial._Algorithms, "loaded"),
    ESTIMATES: (algorithm_trial, "_estimates"),
    "results": (algorithm_trial, "_result"),
    "finals": (algorithm_trial, "in_turn"),
}
"""The functions whose time is a stage, each where the search looks it up. None calls another."""


@dataclass
class Watch:
    """What a search did: the seconds of each stage, and the estimates of each pass in microseconds."""

    seconds: dict[str, float] = field(default_factory=dict)
    estimates: list[dict[Config, float]] = field(default_factory=list)

    def of(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time and estimates are kept."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            _wait()
            start = time.perf_counter()
            try:
                found = function(*args, **kwargs)
            finally:
                _wait()
                self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
            if stage == ESTIMATES:
                self.estimates.append(dict(found))
            return found

        return timed


@contextmanager
def watched() -> Iterator[Watch]:
    """Within it, the stages of all searches are timed."""
    watch = Watch()
    kept = {stage: getattr(owner, name) for stage, (owner, name) in STAGES.items()}
    try:
        for stage, (owner, name) in STAGES.items():
            setattr(owner, name, watch.of(stage, kept[stage]))
        yield watch
    finally:
        for stage, (owner, name) in STAGES.items():
            setattr(owner, name, kept[stage])


def device() -> Device:
    """This process's GPU. Raises InputError without one."""
    found = detect.cuda()
    if found is None:
        raise InputError("no NVIDIA GPU is here")
    return found


def operands(problem: Problem) -> Operands:
    """The operands of a GEMM in bf16, as a compile has them: an activation in the cache, and a weight in memory."""
    m, n, k = problem.m, problem.n, problem.k
    with FakeTensorMode():
        a = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.empty(n, k, device="cuda", dtype=torch.bfloat16).t()
    return Operands(problem, (a, b), (True, False))


def searched(problem: Problem, device: Device, extent: Extent = EXTENTS[0]) -> dict[str, Any]:
    """The facts of one search, JSON-ready; `failure` if it has no result."""
    found: dict[str, Any] = {"sizes": [problem.m, problem.n, problem.k]}
    start = time.perf_counter()
    proposed = cublaslt.configs(problem, device)
    menu_s = time.perf_counter() - start
    with watched() as watch:
        try:
            raced = algorithm_trial.race(
                operands(problem), proposed, lambda config: config.rejection(problem, device) is None, extent
            )
        except Untimed as error:
            return {**found, "failure": one_line(str(error))}
        _wait()
        seconds = time.perf_counter() - start
    rest = seconds - menu_s - sum(watch.seconds.values())
    finalists = {config.text: list(us) for config, us in raced.finalists.items()}
    return {
        **found, "seconds": seconds, "stages_s": {"menu": menu_s, **watch.seconds, "rest": rest},
        "estimated": [len(one.keys() - {ATEN}) for one in watch.estimates],
        "estimates": [{config.text: us for config, us in one.items()} for one in watch.estimates],
        "aten": list(raced.aten), "finalists": finalists, "wrong": [config.text for config in raced.wrong],
        **picked(problem, device, raced),
    }  # fmt: skip


def picked(problem: Problem, device: Device, raced: algorithm_trial.Race) -> dict[str, Any]:
    """What the search serves for its times, and its speedup over ATen; None and the reason if it keeps no result."""
    ask = Ask(Query(problem, device), (), Policy(), installed("cuda"))
    try:
        result = algorithm_jobs.result(algorithm_jobs.measurements(ask, raced)[1])
    except Untimed as error:
        return {"picked": f"nothing: {one_line(str(error))}", "speedup": None}
    return {"picked": result.config.text, "speedup": 1 / result.ratio}


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
