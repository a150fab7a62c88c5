"""Table: one file of measurements and their verdicts, open read-only. Safe to use in threads and after a fork."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import nearest, scanning, schema, summary
from gemmdb.table.decisions import Decisions
from gemmdb.table.families import Families
from gemmdb.table.handle import Handle
from gemmdb.table.held import Held, Measured, Packed
from gemmdb.table.measurement import Measurement
from gemmdb.table.nearest import PLAIN, Metric
from gemmdb.table.record import Record, Time
from gemmdb.table.row_cache import RowCache
from gemmdb.table.rows import parse_provenance
from gemmdb.table.verdict import Verdict

_PAIRS = "SELECT DISTINCT problem, device FROM {} WHERE (problem, device) > (?, ?) ORDER BY problem, device LIMIT 1000"
_RUNS = "SELECT id, text, provenance FROM run WHERE id > ? ORDER BY id LIMIT 100"


class Table:
    """One open file. Everything read from it is validated; TableError says what is wrong with it.

    `digest`: the content digest, equal for equal measurements in any order. `generation`: how often a build or merge
    changed the file. `uid` tells two files of the same generation apart. `built`, the digest when the generation was
    last raised, tells apart two copies that were built further. `version`: of its schema. `packed`: whether it holds
    records instead of measurements; `source`: then the digest of the table that it was made of. All of these are read
    when the file is opened, and again when it is reopened and another file lies at the path.
    """

    def __init__(self, path: Path, immutable: bool = False, check: Callable[[], None] | None = None) -> None:
        self.path = path
        self._file = Handle(path, immutable, weakref.WeakMethod(self._replaced), check)
        self._strangers: set[int] = set()
        self._take(self._file.header())
        self._cache = RowCache(path, self._file.fetch, self.packed)
        self._decisions = Decisions(self._file, self._cache)
        self._families = Families(self._file, self._cache)
        self._held = self._rows_or_records()

    @classmethod
    def open(cls, path: Path, *, immutable: bool = False, check: Callable[[], None] | None = None) -> Table:
        """The table at `path`; `immutable` promises that no process writes the file. `check` is called whenever the
        file is opened, and raises TableError for one that may not be used. Raises TableError."""
        return cls(Path(path), immutable, check)

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent; a later call on the table opens it again."""
        self._file.close()

    def devices(self) -> tuple[Device, ...]:
        """The devices with measurements in this file, with their figures, in the order of their canonical forms."""
        found = self._file.fetch_few("SELECT id FROM device ORDER BY text", (), schema.MOST_DEVICES, "devices")
        return tuple(self._cache.device(key) for (key,) in found)

    def verdict(self, problem: Problem, device: Device, l2: str = "cold", klass: str | None = None) -> Verdict | None:
        """The verdict on a problem, None when the file has none. `klass` None takes the newest toolchain's."""
        known = self._known(device)
        return None if known is None else self._decisions.find(problem, known, l2, klass)

    def verdicts(self, problem: Problem, device: Device) -> list[Verdict]:
        """All verdicts on a problem, of every protocol and toolchain class, in a fixed order."""
        known = self._known(device)
        return [] if known is None else self._decisions.every(problem, known)

    def decided(self) -> Iterator[tuple[Problem, Device]]:
        """Every problem and device with a verdict, in the order of their keys, which says nothing about them. They are
        read in small pieces."""
        return self._pairs("verdict")

    def pairs(self) -> Iterator[tuple[Problem, Device]]:
        """Every problem and device of which the file holds anything, in the order of their keys."""
        return self._pairs(self._held.table)

    def neighbours(
        self, problem: Problem, device: Device, l2: str = "cold", limit: int = 64, within: Sequence[float] = ()
    ) -> list[Problem]:
        """The problems of the same op and family that were measured on the device, the nearest in log M, N, K first,
        the problem itself included; at most `limit`, with M, N and K `within` these ratios of the problem's."""
        with self._file.lookup():
            return self._families.neighbours(problem, device, l2, limit, within, fixed=self._fixed)

    def distances(
        self, problem: Problem, device: Device, l2: str, limit: int, within: Sequence[float], metric: Metric = PLAIN
    ) -> list[tuple[float, Problem]]:
        """The same by a metric, with their distances. Of a large family of a file that may change, the nearest of
        twice as many by the plain distance."""
        with self._file.lookup():
            return self._families.distances(problem, device, l2, limit, within, metric, fixed=self._fixed)

    @property
    def _fixed(self) -> bool:
        """Whether nobody writes to the file."""
        return self.packed or self._file.immutable

    def families(self) -> list[Problem]:
        """A problem of every op and family. Raises TableError if there are more than MOST_FAMILIES."""
        with self._file.lookup():
            return self._families.each()

    def state(self) -> str:
        """A text that changes with every row written."""
        return self.digest if self._file.immutable else str(self._file.fetch(nearest.STATE, ()))

    def rows(self, problem: Problem, device: Device) -> list[Measurement]:
        """Every measurement of a problem on a device, failures included, in a fixed order. A packed table has none and
        raises TableError."""
        return self._held.rows(problem, device)

    def record(self, problem: Problem, device: Device) -> Record | None:
        """All times of a problem on a device, pooled over runs, and what failed; None without any."""
        return self._held.record(problem, device)

    def pooled(self, problem: Problem, device: Device, l2: str = "cold", klass: str | None = None) -> tuple[Time, ...]:
        """Every timed config of a problem, fastest first: those measured in full and those that are `slow` by a short
        estimate. Modelled times count where none was measured."""
        found = self.record(problem, device)
        groups = (found.find(l2, klass, modelled) for modelled in (False, True)) if found else ()
        return next((group.times for group in groups if group), ())

    def under_load(self) -> Iterator[tuple[tuple[int, int], Record]]:
        """The records in which something was timed on a busy machine only, behind the keys of problem and device. They
        are read one by one."""
        for problem, device in self._held.marked():
            found = self.record(self._cache.problem(problem), self._cache.device(device))
            if found is not None and found.under_load:
                yield (problem, device), found

    def settled(self, problem: Problem, device: Device) -> bool:
        """Whether the verdicts of a problem are as new as its rows."""
        return self._held.settled(problem, device)

    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """The configs that were wrong or crashed in some row of the problem on the device."""
        return frozenset() if self._known(device) is None else self._held.barred(problem, device)

    def measurements(self) -> Iterator[Measurement]:
        """All measurements. They are read in small pieces, so no writer waits for a slow consumer. A packed table has
        none and raises TableError."""
        yield from self._held.measurements()

    def summary(self) -> list[dict[str, Any]]:
        """One JSON-ready entry per device, with the keys of `gemmdb tables --json`."""
        file = {"path": str(self.path), "schema_version": self.version, "packed": self.packed, "digest": self.digest}
        counts = self._held.counts()
        return summary.entries(file, self.devices(), self._held.ops(), counts)

    def provenance(self) -> list[dict[str, Any]]:
        """What each run recorded about itself, JSON-ready, ordered by run id."""
        found = []
        for _, run, text in scanning.pages(self._file, _RUNS, 1):
            try:
                found.append({**parse_provenance(text), "run": str(run)})
            except InputError as error:
                raise self._cache.error(str(error)) from error
        return sorted(found, key=itemgetter("run"))

    def _take(self, head: schema.Header) -> None:
        self.digest, self.generation, self.built, self.uid, self.version, self.packed, self.source = head

    def _replaced(self, head: schema.Header) -> None:
        """Forget all that was read: after a fork or `close`, the path led to other content."""
        self._take(head)
        self._strangers.clear()
        self._families.forget()
        self._cache.reset(self.packed)
        self._held = self._rows_or_records()

    def _rows_or_records(self) -> Held:
        return (Packed if self.packed else Measured)(self._file, self._cache)

    def _pairs(self, table: str) -> Iterator[tuple[Problem, Device]]:
        """Every problem and device of an SQL table, read in small pieces."""
        for problem, device in scanning.pages(self._file, _PAIRS.format(table), 2):
            yield self._cache.problem(problem), self._cache.device(device)

    def _known(self, device: Device) -> Device | None:
        """The file's own record of a device; None if it has none. For a file that nobody writes, a None is remembered:
        every lookup asks each shipped table, and most of them are about other devices."""
        if device.key in self._strangers:
            return None
        found = self._cache.find_device(device)
        if found is None and self._file.immutable:
            self._strangers.add(device.key)
        return found
