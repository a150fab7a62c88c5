"""Ask and Step: the input and the output of every rung."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from gemmdb.errors import GemmdbError, TableError
from gemmdb.hit import Hit, Range
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.settings import Policy
from gemmdb.table.measurement import one_line
from gemmdb.table.reader import Table

LOG = logging.getLogger("gemmdb")

Exclude = Callable[[Config, Range | None], str | None]
"""Why the caller cannot carry out a config for some rows (None: all sizes of the query); None when it can."""

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Step:
    """What one rung said: its Hit, or None with the reason in words and numbers. `evidence` is JSON-ready."""

    rung: str
    hit: Hit | None
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """One lookup: the query, the tables in order, the policy and the toolchain that will run the answer (None: unknown,
    and then every row counts as measured under the right one). `excluded`: rules out what the caller cannot carry out;
    `left_out`: what it ruled out of this answer so far, with reasons. `memo`: what the steps of this lookup share.
    `faults`: what was said of tables that could not be read, also for the same question about other problems."""

    query: Query
    tables: tuple[Table, ...]
    policy: Policy
    toolchain: Toolchain | None
    excluded: Exclude | None = None
    left_out: Mapping[Config, str] = field(default_factory=dict)
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

    @property
    def confirming(self) -> bool:
        """Whether the caller times an answer that was not measured for this very problem beside ATen before it serves
        it. Then an answer that is expected to be faster is enough; otherwise it has to be faster for certain. False
        where the policy does not say, as in a lookup outside of a compile, and for symbolic sizes."""
        return bool(self.policy.confirm) and not self.symbolic

    def at(self, problem: Problem) -> Ask:
        """The same question about another problem."""
        return replace(self, query=replace(self.query, problem=problem))

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
