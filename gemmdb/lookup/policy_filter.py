"""The policy filter: which configs may be served, and how much they must gain over ATen."""

from __future__ import annotations

import functools
import re

from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup.ask import Ask
from gemmdb.settings import Policy


def objection(ask: Ask, config: Config) -> str | None:
    """Why `config` cannot be the answer to `ask`: the caller excluded it, the policy does not serve it, or it is not
    legal. None when it can."""
    if ask.left_out and config in ask.left_out:
        return ask.left_out[config]
    try:
        found: str | None = ask.memo[config]
    except KeyError:
        found = ask.memo[config] = _objection(ask, config)
    return found


def _objection(ask: Ask, config: Config) -> str | None:
    query = ask.query
    symbolic = ask.symbolic if query.ranges else ()
    found = refusal(config, ask.policy, query.problem)
    if not found and (rejected := config.rejection(query.problem, query.device, symbolic)):
        found = rejected.reason
    return found or (_costly(ask, config) if config.spec.cost > ask.policy.compile_cost else None)


def refusal(config: Config, policy: Policy, problem: Problem) -> str | None:
    """Why the policy does not serve `config` for `problem`, however long it takes to compile; None when it may. ATen is
    always allowed."""
    found = _refused(config, policy, problem)
    return found if found and config != ATEN else None


def _refused(config: Config, policy: Policy, problem: Problem) -> str | None:
    if policy.deny and _compiled(policy.deny).search(config.text):
        return f"denied by the policy: {policy.deny}"
    if policy.allow and not _compiled(policy.allow).search(config.text):
        return f"not among what the policy allows: {policy.allow}"
    if policy.batch_invariant and splits_reduction(config):
        return "splits the sum over K, which the policy's batch invariance rules out"
    if config.backend == "cutlass" and problem.m * problem.n * problem.k < policy.cutlass_size:
        return f"CUTLASS begins at M x N x K = {policy.cutlass_size} by the policy"
    return None


def expensive(config: Config, policy: Policy) -> str | None:
    """Why the policy does not serve a config that has yet to be compiled, None when it may."""
    if config.spec.cost > policy.compile_cost:
        return f"costs more to compile than the policy's limit of {policy.compile_cost}"
    return None


def _costly(ask: Ask, config: Config) -> str | None:
    """As `expensive`, but a kernel that is compiled in advance has its cost behind it."""
    found = expensive(config, ask.policy)
    if found is None or config.backend != "cutlass":
        return found
    from gemmdb.kernels.cutlass import prebuilt  # Most lookups are not about CUTLASS.

    return found if prebuilt.cost(config, ask.problem, ask.toolchain) > ask.policy.compile_cost else None


def splits_reduction(config: Config) -> bool:
    """Whether the sum over K is split in a way that may differ between values of M.

    A factor of 0 lets the backend choose from the sizes, so only an explicit 1 keeps one order of summation.
    """
    values = config.values
    return any(values.get(name, 1) != 1 for name in config.spec.splits)


def required_gain(policy: Policy, verified: bool | None) -> float:
    """The least gain over ATen (0.02 is 2%) for anything but ATen; more for what is not `verified`."""
    return max(policy.min_gain, policy.unverified_gain) if verified is False else policy.min_gain


def verified(ask: Ask, config: Config, toolchain: Toolchain) -> bool | None:
    """Whether a row of `config` under `toolchain` holds for the running software: the same toolchain class, and for a
    kernel with a source that source as it is now, and a compiler that makes the same of it. None when the running
    software is unknown."""
    running = ask.toolchain
    if running is None:
        return None
    same = toolchain.klass == running.klass and toolchain.compiles_as(running, config.backend)
    return same and is_current(config, toolchain)


def is_current(config: Config, toolchain: Toolchain) -> bool:
    """Whether the source of the kernel that `toolchain` names is the present one; true of rows that name none."""
    if not toolchain.source:
        return True
    return config.is_current(toolchain.source)


def gain(ratio: float) -> float:
    """The gain over ATen of a config whose time is `ratio` of ATen's: 0.25 for a ratio of 0.8."""
    return 1 / ratio - 1


@functools.lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
