"""Coverage: which GEMMs of a workload the tables answer, and how much time the others take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gemmdb.cost.roofline import roofline_us
from gemmdb.hit import RUNGS, Hit
from gemmdb.key.device import Device
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import installed
from gemmdb.ladder import lookup
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.workload.entries import Entry, Workload


@dataclass(frozen=True, slots=True)
class Tally:
    """What one rung answers. `problems`: distinct problems; `count`: occurrences in compiled graphs; `calls`: calls of
    these; `share`: share of the workload's time; `aten`: how many of the problems it answers with ATen."""

    problems: int
    count: int
    calls: int
    share: float
    aten: int


@dataclass(frozen=True, slots=True)
class Miss:
    """A problem (canonical text) that no rung answers. `time_us`: microseconds of one call by the roofline, since
    nothing was measured; `share`: the share of its calls in the workload's time; `ranges`: the ranges of symbolic
    sizes; `origins`: where it comes from in the user's code."""

    problem: str
    device: str
    ranges: Mapping[str, tuple[int, int | None]]
    count: int
    calls: int
    time_us: float
    share: float
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Coverage:
    """A workload's hits per rung, its misses by falling share of time, and (count, calls) by name of the GEMMs that
    gemmdb does not steer. Shares refer to the time of the problems. GEMMs that are not steered have no recorded sizes,
    so no share includes them."""

    problems: int
    hits: Mapping[str, Tally]
    misses: tuple[Miss, ...]
    uncovered: Mapping[str, tuple[int, int]]

    @property
    def hit_share(self) -> float:
        """The share of the time that some rung answers."""
        return sum(tally.share for tally in self.hits.values())

    def as_dict(self) -> dict[str, Any]:
        """What `gemmdb coverage --json` prints."""
        return {
            "problems": self.problems,
            "hit_share": self.hit_share,
            "hits": {rung: asdict(tally) for rung, tally in self.hits.items()},
            "misses": [asdict(miss) for miss in self.misses],
            "uncovered": {name: {"count": n, "calls": calls} for name, (n, calls) in self.uncovered.items()},
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """An entry of a workload, the device that it is for, and the answer."""

    entry: Entry
    device: Device
    hit: Hit | None

    @property
    def query(self) -> Query:
        """What was looked up."""
        return Query(self.entry.problem, self.device, _ranges(self.entry))

    @property
    def time_us(self) -> float:
        """Microseconds of one call: the hit's expected time, else the roofline."""
        return self.hit.expected_us if self.hit else roofline_us(self.entry.problem, self.device)

    @property
    def total_us(self) -> float:
        """Microseconds of all calls; one call per occurrence if none was counted."""
        return self.time_us * (self.entry.calls or self.entry.count)


def coverage(workload: Workload, catalog: Catalog, policy: Policy) -> Coverage:
    """Look up every entry for the device that it was compiled for; for this machine's device if that is unknown.

    Raises InputError for an invalid device or range.
    """
    asked = [ask(entry, catalog, policy) for entry in workload.entries]
    total = sum(one.total_us for one in asked) or 1.0
    by_rung = {rung: [one for one in asked if one.hit and one.hit.rung == rung] for rung in RUNGS}
    missed = sorted((one for one in asked if one.hit is None), key=lambda one: (-one.total_us, one.entry.problem.text))
    return Coverage(
        len(asked),
        {rung: _tally(found, total) for rung, found in by_rung.items() if found},
        tuple(_miss(one, total) for one in missed),
        dict(sorted(workload.uncovered.items())),
    )


def ask(entry: Entry, catalog: Catalog, policy: Policy) -> Asked:
    """Look up an entry for the device that it was compiled for; for this machine's device if that is unknown.

    Raises InputError for an invalid device or range.
    """
    device = Device.parse(entry.device) if entry.device else catalog.resolve(None)
    unanswered = Asked(entry, device, None)
    return replace(unanswered, hit=lookup(unanswered.query, catalog, policy, installed(device.kind)))


def _ranges(entry: Entry) -> dict[str, tuple[int, int | None]]:
    return {name: (low, high) for name, low, high in entry.ranges}


def _tally(found: Sequence[Asked], total: float) -> Tally:
    return Tally(
        len(found),
        sum(one.entry.count for one in found),
        sum(one.entry.calls for one in found),
        sum(one.total_us for one in found) / total,
        sum(one.hit is not None and (one.hit.backend, one.hit.kernel) == ("aten", "default") for one in found),
    )


def _miss(one: Asked, total: float) -> Miss:
    entry = one.entry
    share = one.total_us / total
    return Miss(
        entry.problem.text, one.device.sku, _ranges(entry), entry.count, entry.calls, one.time_us, share,
        tuple(map(str, entry.origins)),
    )  # fmt: skip
