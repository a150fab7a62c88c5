"""Ask, Candidate and Step: the input of every source, its output, and the result of a rung.

An Ask filters configs by the policy. `acceptance` checks their gains."""

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
"""Returns why the caller cannot run a config for a range of M (None: all sizes of the query)."""

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one rung: a Hit, or None, and the reason in one sentence. `evidence` is JSON-ready."""

    rung: str
    hit: Hit | None
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


class Candidate(NamedTuple):
    """A config that a source proposes. `expected_us` and `aten_us`: latency of one call of the config and of ATen, in
    microseconds; `speedup`: over ATen. `table`: the file it comes from; `evidence`: JSON-ready; `reason`: the source's
    reason for it. `verified`: whether its rows are valid for the running toolchain, None if unknown."""

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
        """Return the Hit that serves this candidate."""
        return Hit(rung, self.config, self.expected_us, self.speedup, self.table, self.evidence)

    def step(self, rung: str, reason: str = "") -> Step:
        """Return the Step that serves this candidate. `reason` overrides the candidate's own reason."""
        return Step(rung, self.hit(rung), reason or self.reason, self.evidence)

    def held_back(self, needed: float) -> Candidate:
        """Return an ATen candidate in place of this config, whose gain is below `needed`."""
        held_back = {"config": self.config.text, "gain": self.gain, "needed": needed}
        evidence = {**self.evidence, "held_back": held_back}
        return self._replace(config=ATEN, expected_us=self.aten_us, speedup=1.0, evidence=evidence)


class Within(NamedTuple):
    """The part of a range of M that the answer for one size serves. `key`: equal for the same part of the same range.
    `rejection`: returns why a config cannot serve a problem of that size there."""

    key: object
    rejection: Callable[[Config, Problem], Rejected | None]


@dataclass(frozen=True, slots=True)
class Ask:
    """One lookup: the query, the tables in order, the policy and the toolchain that will run the config (None: unknown,
    and every row then counts as measured under the right one). `excluded`: rejects configs that the caller cannot run;
    `left_out`: the configs rejected so far, with reasons. `within`: the part of a range of M that the answer
    serves, None for one of its own. `memo`: a cache shared by the steps of this lookup. `faults`:
    errors of the tables that could not be read, shared with `at` and `on`."""

    query: Query
    tables: tuple[Table, ...]
    policy: Policy
    toolchain: Toolchain | None
    excluded: Exclude | None = None
    left_out: Mapping[Config, Rejected] = field(default_factory=dict)
    within: Within | None = None
    memo: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    faults: list[str] = field(default_factory=list, compare=False, repr=False)

    @property
    def problem(self) -> Problem:
        """The problem, with hints for symbolic sizes."""
        return self.query.problem

    @property
    def device(self) -> Device:
        """The device to serve."""
        return self.query.device

    @property
    def klass(self) -> str | None:
        """The class of the running toolchain; None if unknown."""
        return None if self.toolchain is None else self.toolchain.klass

    @property
    def symbolic(self) -> tuple[str, ...]:
        """The names among `m`, `n`, `k` that have more than one value."""
        return self.query.symbolic

    def at(self, problem: Problem) -> Ask:
        """Return the same lookup for another problem."""
        return replace(self, query=replace(self.query, problem=problem))

    def on(self, device: Device) -> Ask:
        """Return the same lookup for another device."""
        return replace(self, query=replace(self.query, device=device))

    def key(self, shared: bool) -> tuple[object, ...]:
        """Everything that the result depends on except the fitted coefficients, including the table states. `shared`:
        of the policy it depends only on what that excludes."""
        query, device = self.query, self.query.device
        states = tuple(self.read(Table.state, table) for table in self.tables)
        rules = self.excluding if shared else self.policy
        return (
            query.problem.text, self.symbolic, query.l2, device.key, tuple(device.figures.items()), rules,
            self.toolchain, tuple(self.left_out), self.tables[1:], states, self._part,
        )  # fmt: skip

    @property
    def excluding(self) -> tuple[object, ...]:
        """What a prediction depends on of the policy: the rules that exclude kernels, and for int4 weights, of which
        other formats may be neighbors, whether the caller confirms."""
        policy, confirms = self.policy, self.problem.int4 is not None and self.confirms
        return policy.allow, policy.deny, policy.batch_invariant, policy.compile_cost, policy.cutlass_size, confirms

    @property
    def _part(self) -> object:
        return None if self.within is None else self.within.key

    @property
    def confirms(self) -> bool:
        """Whether the caller benchmarks configs that were not measured for this exact problem against ATen before
        serving them. False where the policy leaves it open, as in a lookup outside a compile, and for symbolic
        sizes."""
        return bool(self.policy.confirm) and not self.symbolic

    def rejection(self, config: Config) -> Rejected | None:
        """Return why `config` cannot be served: the caller or the policy excludes it, or it is not legal."""
        if self.left_out and config in self.left_out:
            return self.left_out[config]
        try:
            found: Rejected | None = self.memo[config]
        except KeyError:
            query = self.query
            symbolic = self.symbolic if query.ranges else ()
            found = policy_rejection(config, self.policy, query.problem)
            found = found or config.rejection(query.problem, query.device, symbolic)
            if found is None and self.within is not None and config != ATEN:
                found = self.within.rejection(config, query.problem)
            self.memo[config] = found = found or self._cost_rejection(config)
        return found

    def _cost_rejection(self, config: Config) -> Rejected | None:
        """Like `compile_cost_rejection`, but prebuilt kernels have no compile cost."""
        found = compile_cost_rejection(config, self.policy)
        if found is None or config.backend != "cutlass":
            return found
        from gemmdb.kernels.cutlass import prebuilt  # Most lookups are not about CUTLASS.

        return found if prebuilt.cost(config, self.problem, self.toolchain) > self.policy.compile_cost else None

    def read(
        self, method: Callable[Concatenate[Table, P], T], table: Table, *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Call `method` on the table; on a broken table warn once and return None, so that the lookup continues with
        the other tables. A broken table may raise errors other than TableError.

        Raises TableError in strict mode (`on_miss="error"`).
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
    """Warn about a broken table. Cached, so that it warns once rather than on every lookup. The message names the
    table."""
    LOG.warning("gemmdb: skipping this table: %s", message)


def policy_rejection(config: Config, policy: Policy, problem: Problem) -> Rejected | None:
    """Return why the policy excludes `config` for `problem`, ignoring compile cost. ATen is always allowed."""
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
    """Return why the compile cost of a config exceeds the policy's limit."""
    if config.spec.cost > policy.compile_cost:
        return Rejected(f"costs more to compile than the policy's limit of {policy.compile_cost}")
    return None


def splits_reduction(config: Config) -> bool:
    """Return whether the split of the reduction over K may depend on M.

    A factor of 0 lets the backend choose from the sizes, so only an explicit 1 fixes the summation order.
    """
    values = config.values
    return any(values.get(name, 1) != 1 for name in config.spec.splits)


@functools.lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
