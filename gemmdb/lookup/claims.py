"""What tables claim, as far as it is possible: a time that no such device can reach does not count.

The maker of a table can write any number. One that is impossible would win against every honest time.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import NoReturn

from gemmdb.cost.possible import least_us, possible
from gemmdb.errors import TableError
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.table.reader import Table
from gemmdb.table.record import STEP, Group, Time
from gemmdb.table.verdict import Verdict


def believed(ask: Ask, table: Table, verdict: Verdict) -> bool:
    """Whether the times that a verdict decides by are possible. If not, the table counts as broken for this lookup: one
    warning says so, and it raises TableError under the strict policy."""
    if verdict_is_possible(verdict):
        return True
    ask.read(_refuse, table, ask.device)
    return False


def verdict_is_possible(verdict: Verdict) -> bool:
    """Whether the times of its pick and of ATen are possible."""
    problem, device, protocol, _, _, ratio, _, aten_us, _ = verdict
    return possible(aten_us * ratio if ratio < 1 else aten_us, problem, device, protocol.l2)


def possible_times(group: Group, problem: Problem, device: Device) -> tuple[Time, ...]:
    """The times of a group with ATen that are possible; none if ATen's is not."""
    fastest = min(map(itemgetter(1), group.times), default=0)  # A hostile record need not begin with it.
    if possible(group.aten_us * min(math.exp(fastest * STEP), 1.0), problem, device, group.l2):
        return group.times
    code = math.log(least_us(problem, device, group.l2) / group.aten_us) / STEP
    return tuple(time for time in group.times if time.code >= code) if code <= 0 else ()


def least_of(ask: Ask) -> float:
    """The least microseconds of the problem under the cache's state that the question is about."""
    return least_us(ask.problem, ask.device, ask.query.l2)


def _refuse(table: Table, device: Device) -> NoReturn:
    raise TableError(
        f"{table.path} has times that no {device.sku} can reach, and these do not count; `gemmdb verify` names one"
    )
