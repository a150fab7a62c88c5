"""Coverage: which GEMMs of a workload the tables serve, and how much time the others take."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gemmdb import outcome
from gemmdb.advice import tighter
from gemmdb.generators.measure.candidates import never_built
from gemmdb.hit import RUNGS, Hit
from gemmdb.kernels.config import ATEN
from gemmdb.key.canonical import lazy
from gemmdb.key.device import Device
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import answer, disturbed, lowering, outdated, over_sizes
from gemmdb.lookup.acceptance import policy_for
from gemmdb.lookup.saving import Saving
from gemmdb.outcome import Kind, Outcome
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.table.stats import Gain, Part, weighted
from gemmdb.workload.entries import Entry, Workload


@dataclass(frozen=True, slots=True)
class Tally:
    """Some problems of a workload. `problems`: distinct problems; `count`: occurrences in compiled graphs; `calls`:
    their calls; `share`: share of the workload's time."""

    problems: int
    count: int
    calls: int
    share: float


@dataclass(frozen=True, slots=True)
class Hits(Tally):
    """Hits of one rung. `aten`: problems that this rung serves with ATen; `aten_share`: their share of the time;
    `outcomes`: all of them by what serves them, a refusal by its reason, most of the time first; `outdated`: those that
    ATen serves by rows of another toolchain than the installed one."""

    aten: int
    aten_share: float
    outcomes: Mapping[Outcome, Tally]
    outdated: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        known = {name: getattr(self, name) for name in ("problems", "count", "calls", "share", "aten", "aten_share")}
        return {**known, "outcomes": [{**one.document(), **asdict(tally)} for one, tally in self.outcomes.items()]}


@dataclass(frozen=True, slots=True)
class Miss:
    """A problem (canonical text) that misses on every rung. `time_us`: microseconds per call, as of an EntryHit;
    `share`: the share of its calls in the workload's time; `ranges`: the ranges of symbolic sizes; `origins`: source
    locations in the user's code; `reason`: why no build can change the miss, empty if one may."""

    problem: str
    device: str
    ranges: Mapping[str, tuple[int, int | None]]
    count: int
    calls: int
    time_us: float
    share: float
    origins: tuple[str, ...] = ()
    reason: str = ""

    @property
    def outcome(self) -> Outcome:
        """What serves it: ATen, and why."""
        return outcome.of_hit(None, self.reason)


@dataclass(frozen=True)
class Coverage:
    """A workload's hits per rung, its misses by falling share of time, and (count, calls) by name of the GEMMs that
    gemmdb does not handle. Shares refer to the problems' time and exclude unhandled GEMMs, which have no recorded
    sizes. `gain`: expected speedup over ATen for all calls of all problems, misses included; its interval covers the
    noise of measured times, not prediction errors. `most_rows`: the largest M of the misses with symbolic sizes.
    `tighter`: smaller ranges that one kernel would serve, one for each GEMM with such a range. `unbuilt`: number
    of hits that know nothing and that no build can change, by reason."""

    problems: int
    hits: Mapping[str, Hits]
    misses: tuple[Miss, ...]
    uncovered: Mapping[str, tuple[int, int]]
    gain: Gain
    most_rows: int = 0
    tighter: tuple[tuple[int, int], ...] = ()
    unbuilt: Mapping[str, int] = field(default_factory=dict)

    @property
    def kernel_share(self) -> float:
        """Share of the time that some rung serves with a kernel other than ATen's."""
        return self.hit_share - sum(tally.aten_share for tally in self.hits.values())

    @property
    def known(self) -> int:
        """Number of problems of which a rung knows the fastest kernel: some hits know nothing, see `outcome`."""
        return sum(tally.problems for tally in self._known)

    @property
    def known_share(self) -> float:
        """Their share of the time."""
        return sum(tally.share for tally in self._known)

    @property
    def disturbed(self) -> int:
        """Number of problems of which all times were taken on a busy machine."""
        return sum(of.problems for hits in self.hits.values() for one, of in hits.outcomes.items() if one.disturbed)

    @property
    def _known(self) -> Iterator[Tally]:
        for hits in self.hits.values():
            yield from (tally for one, tally in hits.outcomes.items() if one.kind is not Kind.ATEN_UNKNOWN)

    @property
    def kinds(self) -> Iterator[Kind]:
        """The kind of outcome of each problem."""
        for hits in self.hits.values():
            for one, tally in hits.outcomes.items():
                yield from [one.kind] * tally.problems
        for miss in self.misses:
            yield miss.outcome.kind

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
            "hits": {rung: hits.as_dict() for rung, hits in self.hits.items()},
            "misses": [asdict(miss) for miss in self.misses],
            "uncovered": {name: {"count": n, "calls": calls} for name, (n, calls) in self.uncovered.items()},
        }


@dataclass(frozen=True)
class EntryHit:
    """An entry of a workload, its device, and its hit, if any. `disturbed`: the hit's time was taken only on a busy
    machine. `saving`: what a build may save per call, for a miss; None if unknown. `reason`: why no build can change
    that ATen runs, empty if one may. All times are means over the sizes of the calls, if these are known."""

    entry: Entry
    device: Device
    hit: Hit | None
    disturbed: bool = False
    saving: Saving | None = None
    reason: str = ""

    @property
    def query(self) -> Query:
        return self.entry.query(self.device)

    @property
    def served(self) -> bool:
        """Whether a rung serves a kernel other than ATen's, at least for some sizes."""
        return self.hit is not None and (self.hit.config != ATEN or bool(self.hit.branches))

    @property
    def runs_kernel(self) -> bool:
        """Whether a kernel other than ATen's runs at a size of the calls; at any of the range, if these are unknown."""
        sizes = self.entry.sizes()
        if self.hit is None or not (self.hit.branches and sizes):
            return self.served
        return any(self.hit.at(problem.m) != ATEN for problem in sizes)

    @property
    def outcome(self) -> Outcome:
        """What serves the GEMM at the sizes of its calls, and why."""
        if self.hit is not None and self.reason:
            return Outcome(Kind.ATEN_UNKNOWN, self.reason)
        return outcome.of_hit(
            self.at_recorded, "" if self.hit else str(lowering.only_aten(self.query) or ""), self.disturbed
        )

    @property
    def tighter(self) -> tuple[int, int] | None:
        """The ends of a smaller range that one kernel would serve; None if none is known."""
        return None if self.hit is None else tighter(self.outcome, self.hit.evidence)

    @property
    def outdated(self) -> bool:
        """Whether the hit's rows are of another toolchain class than the installed one."""
        return self.hit is not None and outdated(self.hit, self.device.kind)

    @property
    def at_recorded(self) -> Hit | None:
        """The hit at the sizes of the calls: ATen's, if kernels serve only other sizes of the range."""
        return self.hit.with_aten() if self.hit is not None and self.hit.branches and not self.runs_kernel else self.hit

    @lazy
    def call(self) -> Part:
        """Microseconds of one call, with ATen and as served: the hit's expected times. A miss has ATen's by an
        estimate. The roofline where there is no estimate, and where the hit's time was taken on a busy machine."""
        hit, sizes = self.hit, self.entry.sizes()
        if hit is not None and not self.disturbed:
            return over_sizes.expected(self.query, hit.expected_us, hit.speedup, hit.evidence, sizes)
        us = self.saving.aten_us if self.saving else over_sizes.mean_roofline_us(self.query, sizes)
        return Part.of(us * (hit.speedup if hit else 1.0), us, 0.0)

    @property
    def time_us(self) -> float:
        """Microseconds of one call, as served."""
        return self.call.after

    @property
    def total_us(self) -> float:
        """Microseconds of all calls; one call per occurrence if calls were not counted."""
        return self.all_calls.after

    @property
    def all_calls(self) -> Part:
        """Microseconds of all calls, with ATen and as served."""
        return self.call.times(self.entry.calls or self.entry.count)

    @property
    def expected(self) -> Gain:
        """Expected speedup over ATen. Its interval has the noise of measured times and, if the sizes of the calls are
        unknown, the whole range."""
        return self.call.gain


def coverage(workload: Workload, catalog: Catalog, policy: Policy, device: Device | None = None) -> Coverage:
    """Look up every entry, for `device` if one is given. Raises InputError for an invalid device or range."""
    recorded = workload.entries if device is None else _on(device, workload.entries)
    entries = [look_up(entry, catalog, policy) for entry in recorded]
    total = sum(one.total_us for one in entries) or 1.0
    by_rung = {rung: [one for one in entries if one.hit and one.hit.rung == rung] for rung in RUNGS}
    missed = [one for one in entries if one.hit is None]
    return Coverage(
        len(entries),
        {rung: _hits(found, total) for rung, found in by_rung.items() if found},
        tuple(
            Miss(
                one.entry.problem.text, one.device.sku, dict(one.query.ranges), one.entry.count, one.entry.calls,
                one.time_us, one.total_us / total, tuple(map(str, one.entry.origins)), one.reason,
            )
            for one in sorted(missed, key=lambda one: (-one.total_us, one.entry.problem.text))
        ),
        dict(sorted(workload.uncovered.items())),
        weighted(one.all_calls for one in entries),
        max((one.entry.most_rows for one in entries if one.entry.ranges and not one.served), default=0),
        tuple(one.tighter for one in entries if one.tighter),
        Counter(one.reason for one in entries if one.hit is not None and one.reason),
    )  # fmt: skip


def look_up(entry: Entry, catalog: Catalog, policy: Policy) -> EntryHit:
    """Look up an entry for its recorded device, or for this machine's device if that is unknown.

    Raises InputError for an invalid device or range.
    """
    device = Device.parse(entry.device) if entry.device else catalog.resolve(None)
    query = entry.query(device)
    hit = answer(query, catalog, policy_for(query, policy), installed(device.kind))
    if hit is None:
        saved = over_sizes.mean_saving(query, entry.sizes())
        return EntryHit(entry, device, None, saving=saved, reason=never_built(query, catalog))
    found = EntryHit(entry, device, hit, disturbed(hit, query, catalog.tables))
    unknown = query.ranges and found.outcome.kind is Kind.ATEN_UNKNOWN
    return replace(found, reason=never_built(query, catalog)) if unknown else found


def _on(device: Device, entries: Iterable[Entry]) -> Iterable[Entry]:
    """Return the entries as if they had been recorded on `device`: those of several devices become one."""
    found: dict[object, Entry] = {}
    for entry in entries:
        key, moved = (entry.problem, entry.ranges), replace(entry, device=device.text)
        found[key] = found[key] + moved if key in found else moved
    return found.values()


def _hits(found: Sequence[EntryHit], total: float) -> Hits:
    by_outcome: defaultdict[Outcome, list[EntryHit]] = defaultdict(list)
    for one in found:
        by_outcome[one.outcome if one.reason else one.outcome.group].append(one)
    outcomes = {serves: _tally(those, total) for serves, those in by_outcome.items()}
    aten = _tally([one for one in found if not one.runs_kernel], total)
    return Hits(
        **asdict(_tally(found, total)), aten=aten.problems, aten_share=aten.share,
        outdated=sum(one.outdated and not one.runs_kernel for one in found),
        outcomes=dict(sorted(outcomes.items(), key=lambda item: (-item[1].share, str(item[0])))),
    )  # fmt: skip


def _tally(found: Sequence[EntryHit], total: float) -> Tally:
    counts, calls = (sum(getattr(one.entry, name) for one in found) for name in ("count", "calls"))
    return Tally(len(found), counts, calls, sum(one.total_us for one in found) / total)
