"""Coverage: which GEMMs of a workload the tables answer, and how much time the others take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gemmdb.cost.roofline import roofline_us
from gemmdb.generators import effort
from gemmdb.generators.measure.candidates import only_aten, too_long
from gemmdb.generators.measure.cpu.space import CpuSpace
from gemmdb.hit import RUNGS, Hit
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import answer
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.confirmable import applied
from gemmdb.lookup.ranges import unmeasured
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.table.stats import Gain, weighted
from gemmdb.workload.entries import Entry, Workload


@dataclass(frozen=True, slots=True)
class Tally:
    """What one rung answers. `problems`: distinct problems; `count`: occurrences in compiled graphs; `calls`: calls of
    these; `share`: share of the workload's time; `aten`: how many of the problems it answers with ATen; `aten_share`:
    their share of the time."""

    problems: int
    count: int
    calls: int
    share: float
    aten: int
    aten_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Miss:
    """A problem (canonical text) that no rung answers. `time_us`: microseconds of one call by the roofline, since
    nothing was measured; `share`: the share of its calls in the workload's time; `ranges`: the ranges of symbolic
    sizes; `origins`: where it comes from in the user's code; `reason`: why no build can change that, empty if one
    may."""

    problem: str
    device: str
    ranges: Mapping[str, tuple[int, int | None]]
    count: int
    calls: int
    time_us: float
    share: float
    origins: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Coverage:
    """A workload's hits per rung, its misses by falling share of time, and (count, calls) by name of the GEMMs that
    gemmdb does not steer. Shares refer to the time of the problems. GEMMs that are not steered have no recorded sizes,
    so no share includes them. `gain`: what is expected over ATen for all calls of all problems, misses included; its
    interval knows the spread of measured times, not how far predictions are off."""

    problems: int
    hits: Mapping[str, Tally]
    misses: tuple[Miss, ...]
    uncovered: Mapping[str, tuple[int, int]]
    gain: Gain

    @property
    def kernel_share(self) -> float:
        """The share of the time that some rung answers with another kernel than ATen's."""
        return self.hit_share - sum(tally.aten_share for tally in self.hits.values())

    @property
    def hit_share(self) -> float:
        """The share of the time that some rung answers."""
        return sum(tally.share for tally in self.hits.values())

    def as_dict(self) -> dict[str, Any]:
        """What `gemmdb coverage --json` prints."""
        return {
            "problems": self.problems,
            "hit_share": self.hit_share,
            "kernel_share": self.kernel_share,
            "gain": asdict(self.gain),
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
    def served(self) -> bool:
        """Whether a rung answers with another kernel than ATen's, for some sizes at least."""
        return self.hit is not None and (self.hit.config != ATEN or bool(self.hit.branches))

    @property
    def part(self) -> tuple[float, float, float]:
        """Microseconds of all calls with ATen and as answered, and how far the latter may be off, for `weighted`."""
        gain = self.hit.speedup if self.hit else 1.0
        spread = self.hit.evidence.get("spread", 0.0) if self.hit and self.served else 0.0
        return self.total_us * gain, self.total_us, spread if isinstance(spread, float) else 0.0

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
        tuple(_miss(one, total, catalog) for one in missed),
        dict(sorted(workload.uncovered.items())),
        weighted(one.part for one in asked),
    )


def ask(entry: Entry, catalog: Catalog, policy: Policy) -> Asked:
    """Look up an entry for the device that it was compiled for; for this machine's device if that is unknown.

    Raises InputError for an invalid device or range.
    """
    device = Device.parse(entry.device) if entry.device else catalog.resolve(None)
    unanswered = Asked(entry, device, None)
    query = unanswered.query
    return replace(unanswered, hit=answer(query, catalog, applied(query, policy), installed(device.kind)))


def _ranges(entry: Entry) -> dict[str, tuple[int, int | None]]:
    return {name: (low, high) for name, low, high in entry.ranges}


def _tally(found: Sequence[Asked], total: float) -> Tally:
    return Tally(
        len(found),
        sum(one.entry.count for one in found),
        sum(one.entry.calls for one in found),
        sum(one.total_us for one in found) / total,
        sum(not one.served for one in found),
        sum(one.total_us for one in found if not one.served) / total,
    )


def _miss(one: Asked, total: float, catalog: Catalog) -> Miss:
    entry = one.entry
    share = one.total_us / total
    return Miss(
        entry.problem.text, one.device.sku, _ranges(entry), entry.count, entry.calls, one.time_us, share,
        tuple(map(str, entry.origins)), _in_vain(one, catalog),
    )  # fmt: skip


def _in_vain(one: Asked, catalog: Catalog) -> str:
    """Why no build can change a miss: ATen is the only candidate, or a size of its range takes too long to measure.
    Empty if one may. On a GPU there always are other candidates."""
    if one.device.kind != "cpu":
        return ""
    space, quick = CpuSpace(), effort.named("quick")
    if reason := only_aten(one.entry.problem, one.device, space, quick):
        return str(reason)
    ask = Ask(one.query, catalog.tables, Policy(), installed(one.device.kind))
    return str((ask.symbolic and too_long(ask, unmeasured(ask), space, quick)) or "")
