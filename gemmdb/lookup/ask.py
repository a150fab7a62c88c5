"""Ask, Candidate and Step: the input of every source, its output, and what is made of that.

An Ask filters configs by the policy. How much they must gain is `acceptance`'s."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from gemmdb.errors import GemmdbError, TableError
from gemmdb.hit import Hit, Range
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy
from gemmdb.table.measurement import one_line
from gemmdb.table.reader import Table

LOG = logging.getLogger("gemmdb")

Exclude = Callable[[Config, Range | None], Rejected | None]
"""Why the caller cannot carry out a config for some rows (None: all sizes of the query)."""

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Step:
    """What one rung said: its Hit, or None with the reason in words and numbers. `evidence` is JSON-ready."""

    rung: str
    hit: Hit | None
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


class Candidate(NamedTuple):
    """A config that a source proposes. `expected_us` and `aten_us`: microseconds of one call, of the config and of
    ATen; `speedup`: over ATen. `table`: the file that it comes from; `evidence`: JSON-ready; `reason`: what the source
    says of it. `verified`: whether its rows hold for the running toolchain, None if unknown."""

    config: Config
    expected_us: float
    speedup: float
    aten_us: float
    table: str
    evidence: Mapping[str, Any]
    reason: str
    verified: bool | None = None

    @property
    def gain(self) -> float:
        """The expected gain over ATen: 0.25 for a speedup of 1.25."""
        return self.speedup - 1

    def hit(self, rung: str) -> Hit:
        """The Hit that serves it."""
        return Hit(rung, self.config, self.expected_us, self.speedup, self.table, self.evidence)

    def step(self, rung: str, reason: str = "") -> Step:
        """The step that serves it. `reason`: instead of its own."""
        return Step(rung, self.hit(rung), reason or self.reason, self.evidence)

    def held_back(self, needed: float) -> Candidate:
        """ATen in place of the config, which gains less than `needed`."""
        held_back = {"config": self.config.text, "gain": self.gain, "needed": needed}
        evidence = {**self.evidence, "held_back": held_back}
        return self._replace(config=ATEN, expected_us=self.aten_us, speedup=1.0, evidence=evidence)


@dataclass(frozen=True, slots=True)
class Ask:
    """One lookup: the query, the tables in order, the policy and the toolchain that will run the answer (None: unknown,
    and then every row counts as measured under the right one). `excluded`: rules out what the caller cannot carry out;
    `left_out`: what it ruled out of this answer so far, with reasons. `memo`: what the steps of this lookup share.
    `faults`: the tables that could not be read, also for the same query at another problem."""

    query: Query
    tables: tuple[Table, ...]
    policy: Policy
    toolchain: Toolchain | None
    excluded: Exclude | None = None
    left_out: Mapping[Config, Rejected] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    faults: list[str] = field(default_factory=list, compare=False, repr=False)

    @property
    def problem(self) -> Problem:
        """The problem, with the hints of symbolic sizes."""
        return self.query.problem

    @property
    def device(self) -> Device:
        """The device that the answer is for."""
        return self.query.device

    @property
    def klass(self) -> str | None:
        """The class of the running toolchain, None when it is unknown."""
        return None if self.toolchain is None else self.toolchain.klass

    @property
    def symbolic(self) -> tuple[str, ...]:
        """Which of `m`, `n`, `k` have more than one value."""
        return tuple(name for name, (low, high) in self.query.ranges.items() if low != high)

    def at(self, problem: Problem) -> Ask:
        """The same lookup for another problem."""
        return replace(self, query=replace(self.query, problem=problem))

    def on(self, device: Device) -> Ask:
        """The same lookup for another device."""
        return replace(self, query=replace(self.query, device=device))

    @property
    def key(self) -> tuple[object, ...]:
        """All that an answer depends on, besides the fitted coefficients: also the states of the tables."""
        query, device = self.query, self.query.device
        states = tuple(self.read(Table.state, table) for table in self.tables)
        return (
            query.problem.text, self.symbolic, query.l2, device.key, tuple(device.figures.items()), self.policy,
            self.toolchain, tuple(self.left_out), self.tables[1:], states,
        )  # fmt: skip

    def rejection(self, config: Config) -> Rejected | None:
        """Why `config` cannot be the answer: the caller excluded it, the policy does not serve it, or it is not
        legal."""
        if self.left_out and config in self.left_out:
            return self.left_out[config]
        try:
            found: Rejected | None = self.memo[config]
        except KeyError:
            query = self.query
            symbolic = self.symbolic if query.ranges else ()
            found = policy_rejection(config, self.policy, query.problem)
            found = found or config.rejection(query.problem, query.device, symbolic)
            self.memo[config] = found = found or self._cost_rejection(config)
        return found

    def _cost_rejection(self, config: Config) -> Rejected | None:
        """As `compile_cost_rejection`, but a kernel that is compiled in advance has its cost behind it."""
        found = compile_cost_rejection(config, self.policy)
        if found is None or config.backend != "cutlass":
            return found
        from gemmdb.kernels.cutlass import prebuilt  # Most lookups are not about CUTLASS.

        return found if prebuilt.cost(config, self.problem, self.toolchain) > self.policy.compile_cost else None

    def read(
        self, method: Callable[Concatenate[Table, P], T], table: Table, *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """`method` of the table; None, with one warning, when the table turns out to be broken: the other tables still
        answer. A broken one may raise more than TableError.

        Raises TableError under the strict policy (`on_miss="error"`).
        """
        try:
            return method(table, *args, **kwargs)
        except TableError as error:
            broken = error
        except (GemmdbError, ValueError) as error:
            broken = TableError(f"{table.path} is broken ({one_line(str(error))[:300]}); check it with `gemmdb verify`")
        self.faults.append(str(broken))
        if self.policy.on_miss == "error":
            raise broken
        _warn(str(broken))
        return None


@functools.cache
def _warn(message: str) -> None:
    """Cached, so that a broken table is reported once and not at every lookup. The message names the table."""
    LOG.warning("gemmdb: this table is left out: %s", message)


def policy_rejection(config: Config, policy: Policy, problem: Problem) -> Rejected | None:
    """Why the policy does not serve `config` for `problem`, however long it takes to compile. ATen is always
    allowed."""
    reason = ""
    if policy.deny and _compiled(policy.deny).search(config.text):
        reason = f"denied by the policy: {policy.deny}"
    elif policy.allow and not _compiled(policy.allow).search(config.text):
        reason = f"not among what the policy allows: {policy.allow}"
    elif policy.batch_invariant and splits_reduction(config):
        reason = "splits the sum over K, which the policy's batch invariance rules out"
    elif config.backend == "cutlass" and problem.m * problem.n * problem.k < policy.cutlass_size:
        reason = f"CUTLASS begins at M x N x K = {policy.cutlass_size} by the policy"
    return Rejected(reason) if reason and config != ATEN else None


def compile_cost_rejection(config: Config, policy: Policy) -> Rejected | None:
    """Why the policy does not serve a config that has yet to be compiled."""
    if config.spec.cost > policy.compile_cost:
        return Rejected(f"costs more to compile than the policy's limit of {policy.compile_cost}")
    return None


def splits_reduction(config: Config) -> bool:
    """Whether the sum over K is split in a way that may differ between values of M.

    A factor of 0 lets the backend choose from the sizes, so only an explicit 1 keeps one order of summation.
    """
    values = config.values
    return any(values.get(name, 1) != 1 for name in config.spec.splits)


@functools.lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
