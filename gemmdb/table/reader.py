"""Table: one file of measurements and their verdicts, open read-only. Safe to use in threads and after a fork."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any
from zlib import crc32

from gemmdb.errors import InputError, TableError
from gemmdb.kernels.config import Config
from gemmdb.kernels.triton.dependent import early
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import dbfile, nearest, schema
from gemmdb.table.checksum import BYTES, NUMBERS, WHOLE
from gemmdb.table.handle import Handle
from gemmdb.table.measurement import LEAST_US, MARKED, MOST_US, Measurement
from gemmdb.table.nearest import PLAIN, Metric
from gemmdb.table.record import Record, Time, record
from gemmdb.table.row_cache import CONTEXT, Context, RowCache
from gemmdb.table.rows import parse_provenance
from gemmdb.table.verdict import Verdict, age

_WIDEST = MOST_US / LEAST_US
"""The largest ratio of two times."""
_ALL = (
    f"SELECT {', '.join(schema.COLUMNS)} FROM measurement WHERE (problem, device, id) > (?, ?, ?)"
    " ORDER BY problem, device, id LIMIT 1000"
)
_PAIRS = "SELECT DISTINCT problem, device FROM {} WHERE (problem, device) > (?, ?) ORDER BY problem, device LIMIT 1000"
_DECIDED = (
    "SELECT DISTINCT problem, device FROM verdict WHERE (problem, device) > (?, ?) ORDER BY problem, device LIMIT 1000"
)

_MARKED = "SELECT DISTINCT problem, device FROM measurement WHERE detail IN (?, ?)"


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
        self._fetch = self._file.fetch
        self._strangers: set[int] = set()
        self._crowded: set[int] = set()
        self._families: dict[tuple[str, str, int, str], nearest.Family] = {}
        self._take(self._file.header())
        self._cache = RowCache(path, self._fetch, self.packed)

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

    def verdict(
        self, problem: Problem, device: Device, l2: str = "cold", klass: str | None = None, chained: bool = False
    ) -> Verdict | None:
        """The verdict on a problem, None when the file has none. `klass` None takes the newest toolchain's. `chained`:
        that of times between other kernels, if it picks a kernel that begins before the one in front has ended."""
        file, cache = self._file, self._cache
        known = self._known(device)
        if known is None:
            return None
        # Inlined from `Handle.fetch` and `RowCache.context`: two calls fewer save a tenth of the time of a lookup.
        db = None
        try:
            with file.lock:
                if file.busy:  # A signal handler asks while this thread reads.
                    args = (problem.key, known.key)
                    rows = file.fetch_few(schema.VERDICT_SQL, args, schema.MOST_VERDICTS, "verdicts")
                else:
                    file.busy = True
                    try:
                        db = file.db or file.connect()
                        file.deadline.begin()
                        found = db.execute(schema.VERDICT_SQL, (problem.key, known.key))
                        rows = found.fetchmany(schema.MOST_VERDICTS + 1)
                    finally:
                        file.busy = False
        except dbfile.FAULTS as error:
            if file.moved(db):
                return self.verdict(problem, device, l2, klass, chained)
            raise file.broken(error) from error
        if len(rows) > 1:
            if len(rows) > schema.MOST_VERDICTS:
                raise file.crowded(schema.MOST_VERDICTS, "verdicts")
            rows.sort(key=lambda row: self._rank(row, known), reverse=True)
        for row in rows:
            try:
                context = cache.contexts[known.kind][row[0][:CONTEXT]]
            except (KeyError, TypeError):
                context = cache.context(known.kind, row[0])
            state = context.protocol.l2
            if (state == l2 or (chained and state == "chain")) and (klass is None or context.klass == klass):
                verdict = self._verdict(row, context, problem, known)
                if state == l2 or (verdict is not None and early(verdict.pick)):
                    return verdict
        return None

    def verdicts(self, problem: Problem, device: Device) -> list[Verdict]:
        """All verdicts on a problem, of every protocol and toolchain class, in a fixed order."""
        known = self._known(device)
        if known is None:
            return []
        args = (problem.key, known.key)
        rows = self._file.fetch_few(schema.VERDICT_SQL, args, schema.MOST_VERDICTS, "verdicts")
        found = [(row, self._verdict(row, self._cache.context(known.kind, row[0]), problem, known)) for row in rows]
        # Values of other types, which cannot be compared, have raised TableError by now.
        kept = sorted((pair for pair in found if pair[1] is not None), key=lambda pair: pair[0])
        return [verdict for _, verdict in kept if verdict is not None]

    def decided(self) -> Iterator[tuple[Problem, Device]]:
        """Every problem and device with a verdict, in the order of their keys, which says nothing about them. They are
        read in small pieces."""
        last = (-(2**63), -(2**63))
        while found := self._fetch(_DECIDED, last):
            for problem, device in found:
                yield self._cache.problem(problem), self._cache.device(device)
            last = found[-1]

    def pairs(self) -> Iterator[tuple[Problem, Device]]:
        """Every problem and device of which the file holds anything, in the order of their keys."""
        last = (-(2**63), -(2**63))
        sql = _PAIRS.format("record" if self.packed else "measurement")
        while found := self._fetch(sql, last):
            for problem, device in found:
                yield self._cache.problem(problem), self._cache.device(device)
            last = found[-1]

    def neighbours(
        self, problem: Problem, device: Device, l2: str = "cold", limit: int = 64, within: Sequence[float] = ()
    ) -> list[Problem]:
        """The problems of the same op and family that were measured on the device, the nearest in log M, N, K first,
        the problem itself included; at most `limit`, with M, N and K `within` these ratios of the problem's."""
        if self._changes:
            found = self._nearest(problem, device, l2, limit, within)
            return [p for key in found if (p := self._member(key, problem))]
        return [one for _, one in self.distances(problem, device, l2, limit, within)]

    def distances(
        self, problem: Problem, device: Device, l2: str, limit: int, within: Sequence[float], metric: Metric = PLAIN
    ) -> list[tuple[float, Problem]]:
        """The same by a metric, with their distances. Of a file that may change, the nearest of twice as many by the
        plain distance."""
        if self._changes:
            known = self.neighbours(problem, device, l2, 2 * limit, within)
            return sorted([(metric.apart(problem, one), one) for one in known], key=itemgetter(0))[:limit]
        family = self._family(problem, device, l2)  # Its bytes do not change while it is open.
        members, found = family.known, family.nearest(problem, limit, within, metric)
        for _, key in found:
            if key not in members:
                members[key] = self._member(key, problem)
        return [(distance, one) for distance, key in found if (one := members[key])]

    @property
    def _changes(self) -> bool:
        """Whether somebody may write to the file."""
        return not self.packed and not self._file.immutable

    def families(self) -> list[Problem]:
        """A problem of every op and family. Raises TableError if there are more than MOST_FAMILIES."""
        keys: list[int] = []
        last = -(2**63)
        while found := self._fetch(nearest.FAMILY_AFTER, (last,)):
            ((last, key),) = found
            keys.append(key)
            if len(keys) > schema.MOST_FAMILIES:
                raise TableError(f"{self.path} holds more than {schema.MOST_FAMILIES:,} families of problems")
        return [self._cache.problem(key) for key in keys]

    def state(self) -> str:
        """A text that changes with every row written."""
        return self.digest if self._file.immutable else str(self._fetch(nearest.STATE, ()))

    def rows(self, problem: Problem, device: Device) -> list[Measurement]:
        """Every measurement of a problem on a device, failures included, in a fixed order. A packed table has none and
        raises TableError."""
        self._unpacked()
        args = (problem.key, device.key)
        found = self._file.fetch_few(schema.ROWS_SQL, args, schema.MOST_MEASUREMENTS, "measurements of a problem")
        same = not found or self._cache.problem(problem.key).text == problem.text
        return [self._measured(row) for row in found] if same else []

    def record(self, problem: Problem, device: Device) -> Record | None:
        """All times of a problem on a device, pooled over runs, and what failed; None without any."""
        if not self.packed:
            rows = self.rows(problem, device)
            return record(rows) if rows else None
        found = self._fetch(schema.RECORD_SQL, (problem.key, device.key))
        same = found and self._cache.problem(problem.key).text == problem.text
        return self._cache.record(found[0][0], problem.key, device.key) if same else None

    def pooled(self, problem: Problem, device: Device, l2: str = "cold", klass: str | None = None) -> tuple[Time, ...]:
        """Every timed config of a problem, fastest first: those measured in full and those that are `slow` by a short
        estimate. Modelled times count where none was measured."""
        found = self.record(problem, device)
        groups = (found.find(l2, klass, modelled) for modelled in (False, True)) if found else ()
        return next((group.times for group in groups if group), ())

    def under_load(self) -> dict[tuple[int, int], Record]:
        """By the keys of problem and device: the records in which something was timed on a busy machine only."""
        packed = self.packed
        sql, args = ("SELECT problem, device FROM record", ()) if packed else (_MARKED, MARKED)
        pairs = self._fetch(sql, args, bulk=True)
        found = {(p, d): self.record(self._cache.problem(p), self._cache.device(d)) for p, d in pairs}
        return {pair: known for pair, known in found.items() if known and known.under_load}

    def settled(self, problem: Problem, device: Device) -> bool:
        """Whether the verdicts of a problem are as new as its rows."""
        return self.packed or not self._fetch(schema.PENDING_SQL, (problem.key, device.key))

    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """The configs that were wrong or crashed in some row of the problem on the device."""
        if self._known(device) is None:
            return frozenset()
        if self.packed:
            packed = self._fetch(schema.RECORD_SQL, (problem.key, device.key))
            return self._cache.banned(packed[0][0], problem.key, device.key) if packed else frozenset()
        args = (problem.key, device.key)
        found = self._file.fetch_few(schema.BARRED_SQL, args, schema.MOST_MEASUREMENTS, "failed configs of a problem")
        return frozenset(self._cache.config(key) for (key,) in found)

    def measurements(self) -> Iterator[Measurement]:
        """All measurements. They are read in small pieces, so no writer waits for a slow consumer. A packed table has
        none and raises TableError."""
        self._unpacked()
        last = (-(2**63), -(2**63), -(2**63))
        while found := self._fetch(_ALL, last):
            for row in found:
                yield self._cache.measurement(row)
            last = found[-1][:3]

    def summary(self) -> list[dict[str, Any]]:
        """One JSON-ready entry per device, with the keys of `gemmdb tables --json`."""
        pairs = f"(SELECT DISTINCT problem, device FROM {'record' if self.packed else 'measurement'})"
        ops = self._fetch(
            f"SELECT device, op, count(*) FROM {pairs} AS pair JOIN problem ON problem.id = pair.problem"
            " GROUP BY device, op ORDER BY op",
            (),
            bulk=True,
        )
        counts = self._counts()
        return [self._summary(device, ops, counts) for device in self.devices()]

    def _counts(self) -> Sequence[tuple[int, bool, int]]:
        """For each device the number of measurements, or of pooled times and failures in a packed table: computed by
        the cost model or not."""
        if self.packed:
            packed = self._fetch("SELECT device, data FROM record", (), bulk=True)
            return [(device, bool(modelled), number) for device, data in packed
                    for modelled, number in enumerate(self._cache.counts(data))]  # fmt: skip
        found = self._fetch(
            "SELECT device, protocol, count(*) FROM measurement GROUP BY device, protocol", (), bulk=True
        )
        return [(owner, self._cache.protocol(key).clock == "model", number) for owner, key, number in found]

    def provenance(self) -> list[dict[str, Any]]:
        """What each run recorded about itself, JSON-ready, ordered by run id."""
        found = []
        for run, text in self._fetch("SELECT text, provenance FROM run ORDER BY text", ()):
            try:
                found.append({**parse_provenance(text), "run": run})
            except InputError as error:
                raise self._cache.error(str(error)) from error
        return found

    def _take(self, head: schema.Header) -> None:
        self.digest, self.generation, self.built, self.uid, self.version, self.packed, self.source = head

    def _replaced(self, head: schema.Header) -> None:
        """Forget all that was read: after a fork or `close`, the path led to other content."""
        self._take(head)
        self._strangers.clear()
        self._families.clear()
        self._crowded.clear()
        self._cache.reset(self.packed)

    def _unpacked(self) -> None:
        if self.packed:
            raise TableError(
                f"{self.path} is packed: it holds pooled times and no measurements; use the table that it was packed"
                " from, or the archives"
            )

    def _nearest(self, problem: Problem, device: Device, l2: str, limit: int, within: Sequence[float]) -> Sequence[int]:
        """The keys of the nearest problems of a family in a file that may change. Of a large family only what is close
        by is read, as long as that is enough."""
        if problem.family_key not in self._crowded:
            rows = self._decided(problem, device, l2, within, nearest.CROWD)
            if len(rows) < nearest.CROWD:
                return nearest.keys(rows, problem, limit)
            self._crowded.add(problem.family_key)
        for ratio in nearest.RATIOS:
            box = [min(ratio, bound) for bound in within or (math.inf,) * 3]
            rows = self._decided(problem, device, l2, box)
            found = nearest.keys(rows, problem, limit, ratio)
            if len(found) == limit:
                return found
        return nearest.keys(self._decided(problem, device, l2, within), problem, limit)

    def _decided(
        self, problem: Problem, device: Device, l2: str, within: Sequence[float], most: int | None = None
    ) -> list[tuple[Any, ...]]:
        """The keys and sizes of the problems of a family with a measured verdict; `most`: of so many at most."""
        fetch = self._file.fetch_few
        ids = fetch("SELECT id FROM protocol", (), schema.MOST_PROTOCOLS, "protocols")
        protocols = {key: self._cache.protocol(key) for (key,) in ids}
        wanted = [key for key, known in protocols.items() if known.l2 == l2 and known.clock != "model"]
        query = nearest.statement(problem, device.key, wanted, within, most)
        return fetch(*query, schema.MOST_PROBLEMS, "problems of a family")

    def _family(self, problem: Problem, device: Device, l2: str) -> nearest.Family:
        """All problems of a family, read once."""
        known = problem.op, problem.family, device.key, l2
        family = self._families.get(known)
        if family is None:
            family = nearest.Family.of(self._decided(problem, device, l2, ()))
            if len(self._families) >= schema.MOST_FAMILIES:
                self._families.clear()
            self._families[known] = family
        return family

    def _member(self, key: int, problem: Problem) -> Problem | None:
        """The problem of a key, if it is of the same op and family."""
        found = self._cache.problem(key)
        return found if found.op == problem.op and found.family == problem.family else None

    def _known(self, device: Device) -> Device | None:
        """The file's own record of a device; None if it has none. For a file that nobody writes, a None is remembered:
        every lookup asks each shipped table, and most of them are about other devices."""
        if device.key in self._strangers:
            return None
        found = self._cache.find_device(device)
        if found is None and self._file.immutable:
            self._strangers.add(device.key)
        return found

    def _measured(self, row: Sequence[Any]) -> Measurement:
        """The measurement of a row, whose key says that it is whole."""
        measurement = self._cache.measurement(row)
        if measurement.key != row[2]:
            raise self._cache.error("a measurement is damaged: it does not match its key")
        return measurement

    def _summary(self, device: Device, ops: Sequence[Any], counts: Sequence[Any]) -> dict[str, Any]:
        measured, computed = (
            sum(number for owner, modelled, number in counts if (owner, modelled) == (device.key, kind))
            for kind in (False, True)
        )
        modelled = computed > 0 and not measured
        return {
            "path": str(self.path),
            "arch": device.arch,
            "device": device.sku,
            "schema_version": self.version,
            "packed": self.packed,
            "digest": self.digest,
            "origin": "modelled" if modelled else "measured",
            "problems": {op: count for owner, op, count in ops if owner == device.key},
            "measurements": measured + computed,
        }

    def _verdict(self, row: tuple[Any, ...], context: Context, problem: Problem, device: Device) -> Verdict | None:
        keys, ratio, spread, aten_us, runs, head = row
        if str(head) + context.tail != problem.text:
            return None  # Somebody can construct texts whose 64-bit keys collide.
        try:
            plausible = 1 / _WIDEST <= ratio <= _WIDEST and 0.0 <= spread < math.inf
            plausible = plausible and LEAST_US <= aten_us <= MOST_US and runs > 0 and type(runs) is int
        except TypeError:
            plausible = False
        if not plausible:
            raise self._cache.error("a verdict is malformed")
        if len(keys) % 8 == BYTES:  # Rows of older files have no checksum.
            if crc32(keys, crc32(NUMBERS(problem.key, device.key, ratio, spread, aten_us, runs))) != WHOLE:
                raise self._cache.error("a verdict is damaged: its checksum differs")
            keys = keys[:-BYTES]
        ties = context.ties.get(keys[CONTEXT:]) or self._cache.ties(keys[CONTEXT:], context)
        return Verdict(problem, device, context.protocol, context.toolchain, ties, ratio, spread, aten_us, runs)

    def _rank(self, row: tuple[Any, ...], device: Device) -> tuple[Any, ...]:
        """The sort key of verdicts: measured before modelled, then between other kernels before alone, then the newest
        procedure, the newest toolchain, the most samples."""
        protocol, toolchain, *_ = self._cache.context(device.kind, row[0])
        return (
            protocol.clock != "model",
            protocol.l2 == "chain",
            protocol.version,
            age(toolchain),
            protocol.samples,
            protocol.text,
        )
