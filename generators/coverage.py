"""Coverage: which GEMMs of a workload the tables serve, and how much time the others take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from gemmdb.lookup import answer, disturbed
from gemmdb.lookup.acceptance import policy_for
from gemmdb.lookup.acceptance.ranges import unmeasured
from gemmdb.lookup.ask import Ask
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.table.stats import Gain, weighted
from gemmdb.workload.entries import Entry, Workload


@dataclass(frozen=True, slots=True)
class Tally:
    """Hits of one rung. `problems`: distinct problems; `count`: occurrences in compiled graphs; `calls`: their calls;
    `share`: share of the workload's time; `aten`: problems that this rung serves with ATen; `aten_share`: their share
    of the time."""

    problems: int
    count: int
    calls: int
    share: float
    aten: int
    aten_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Miss:
    """A problem (canonical text) that misses on every rung. `time_us`: roofline microseconds per call, since there is
    no measurement; `share`: the share of its calls in the workload's time; `ranges`: the ranges of symbolic sizes;
    `origins`: source locations in the user's code; `reason`: why no build can change the miss, empty if one may."""

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
    gemmdb does not handle. Shares refer to the problems' time and exclude unhandled GEMMs, which have no recorded
    sizes. `gain`: expected speedup over ATen for all calls of all problems, misses included; its interval covers the
    noise of measured times, not prediction errors."""

    problems: int
    hits: Mapping[str, Tally]
    misses: tuple[Miss, ...]
    uncovered: Mapping[str, tuple[int, int]]
    gain: Gain

    @property
    def kernel_share(self) -> float:
        """Share of the time that some rung serves with a kernel other than ATen's."""
        return self.hit_share - sum(tally.aten_share for tally in self.hits.values())

    @property
    def hit_share(self) -> float:
        """Share of the time that some rung serves."""
        return sum(tally.share for tally in self.hits.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the output of `gemmdb coverage --json`."""
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
class EntryHit:
    """An entry of a workload, its device, and its hit, if any. `disturbed`: ATen is served, and its time was taken only
    on a busy machine."""

    entry: Entry
    device: Device
    hit: Hit | None
    disturbed: bool = False

    @property
    def query(self) -> Query:
        return _query(self.entry, self.device)

    @property
    def served(self) -> bool:
        """Whether a rung serves a kernel other than ATen's, at least for some sizes."""
        return self.hit is not None and (self.hit.config != ATEN or bool(self.hit.branches))

    @property
    def runs_kernel(self) -> bool:
        """Whether a kernel other than ATen's runs at the recorded sizes."""
        return self.hit is not None and self.hit.config != ATEN

    @property
    def time_us(self) -> float:
        """Microseconds per call: the hit's expected time, else the roofline, also where the hit's time was taken on a
        busy machine."""
        known = self.hit is not None and not self.disturbed
        return self.hit.expected_us if self.hit and known else roofline_us(self.entry.problem, self.device)

    @property
    def total_us(self) -> float:
        """Microseconds of all calls; one call per occurrence if calls were not counted."""
        return self.time_us * (self.entry.calls or self.entry.count)

    @property
    def gain_us(self) -> tuple[float, float, float]:
        """Microseconds of all calls with ATen and with the hit, and the uncertainty of the latter, for `weighted`."""
        speedup = self.hit.speedup if self.hit else 1.0
        spread = self.hit.evidence.get("spread", 0.0) if self.hit and self.runs_kernel else 0.0
        return self.total_us * speedup, self.total_us, spread if isinstance(spread, float) else 0.0


def coverage(workload: Workload, catalog: Catalog, policy: Policy, device: Device | None = None) -> Coverage:
    """Look up every entry, for `device` if one is given. Raises InputError for an invalid device or range."""
    recorded = workload.entries if device is None else _on(device, workload.entries)
    entries = [look_up(entry, catalog, policy) for entry in recorded]
    total = sum(one.total_us for one in entries) or 1.0
    by_rung = {rung: [one for one in entries if one.hit and one.hit.rung == rung] for rung in RUNGS}
    missed = [one for one in entries if one.hit is None]
    return Coverage(
        len(entries),
        {rung: _tally(found, total) for rung, found in by_rung.items() if found},
        tuple(
            Miss(
                one.entry.problem.text, one.device.sku, dict(one.query.ranges), one.entry.count, one.entry.calls,
                one.time_us, one.total_us / total, tuple(map(str, one.entry.origins)), _never_built(one, catalog),
            )
            for one in sorted(missed, key=lambda one: (-one.total_us, one.entry.problem.text))
        ),
        dict(sorted(workload.uncovered.items())),
        weighted(one.gain_us for one in entries),
    )  # fmt: skip


def look_up(entry: Entry, catalog: Catalog, policy: Policy) -> EntryHit:
    """Look up an entry for its recorded device, or for this machine's device if that is unknown.

    Raises InputError for an invalid device or range.
    """
    device = Device.parse(entry.device) if entry.device else catalog.resolve(None)
    query = _query(entry, device)
    hit = answer(query, catalog, policy_for(query, policy), installed(device.kind))
    return EntryHit(entry, device, hit, hit is not None and disturbed(hit, query, catalog.tables))


def _on(device: Device, entries: Iterable[Entry]) -> Iterable[Entry]:
    """Return the entries as if they had been recorded on `device`: those of several devices become one."""
    found: dict[object, Entry] = {}
    for entry in entries:
        key, moved = (entry.problem, entry.ranges), replace(entry, device=device.text)
        found[key] = found[key] + moved if key in found else moved
    return found.values()


def _query(entry: Entry, device: Device) -> Query:
    return Query(entry.problem, device, {name: (low, high) for name, low, high in entry.ranges})


def _tally(found: Sequence[EntryHit], total: float) -> Tally:
    aten = [one for one in found if not one.runs_kernel]
    return Tally(
        len(found),
        sum(one.entry.count for one in found),
        sum(one.entry.calls for one in found),
        sum(one.total_us for one in found) / total,
        len(aten),
        sum(one.total_us for one in aten) / total,
    )


def _never_built(one: EntryHit, catalog: Catalog) -> str:
    """Return why no build can change a miss: ATen is the only candidate, or a size of its range takes too long to
    measure. Empty if a build may. On a GPU there are always other candidates."""
    if one.device.kind != "cpu":
        return ""
    space, quick = CpuSpace(), effort.named("quick")
    if reason := only_aten(one.entry.problem, one.device, space, quick):
        return str(reason)
    ask = Ask(one.query, catalog.tables, Policy(), installed(one.device.kind))
    return str((ask.symbolic and too_long(ask, unmeasured(ask), space, quick)) or "")
