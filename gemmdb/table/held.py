"""What a file holds of each problem and device: its measurements, or in a packed table one record of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gemmdb.errors import TableError
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import scanning, schema
from gemmdb.table.handle import Handle
from gemmdb.table.measurement import MARKED, Measurement
from gemmdb.table.record import Record, record
from gemmdb.table.row_cache import RowCache
from gemmdb.table.summary import Counts, Ops

_ALL = (
    f"SELECT {', '.join(schema.COLUMNS)} FROM measurement WHERE (problem, device, id) > (?, ?, ?)"
    " ORDER BY problem, device, id LIMIT 1000"
)
_AFTER = "(problem, device) > (?, ?)"
_PAGE = "ORDER BY problem, device LIMIT 1000"
_MARKED = (
    f"SELECT DISTINCT problem, device FROM measurement WHERE detail IN ({', '.join(map(repr, MARKED))}) AND {_AFTER}"
    f" {_PAGE}"
)
_SIZES = (
    "SELECT problem, device, count(*), sum((protocol IN ({})) IS TRUE) FROM measurement"
    f" WHERE {_AFTER} GROUP BY problem, device {_PAGE}"
)
_OPS = (
    "SELECT DISTINCT problem, device, op FROM {} AS held JOIN problem ON problem.id = held.problem"
    f" WHERE {_AFTER} {_PAGE}"
)
Pairs = Iterable[tuple[int, int]]
"""Keys of problems and devices."""


class Held(ABC):
    """The rows of one open file. Every method raises TableError for what is malformed."""

    table: str
    """The name of the SQL table that holds them."""

    def __init__(self, file: Handle, cache: RowCache) -> None:
        self._file, self._cache = file, cache

    @abstractmethod
    def rows(self, problem: Problem, device: Device) -> list[Measurement]:
        """See `Table.rows`."""

    @abstractmethod
    def measurements(self) -> Iterator[Measurement]:
        """See `Table.measurements`."""

    @abstractmethod
    def record(self, problem: Problem, device: Device) -> Record | None:
        """See `Table.record`."""

    @abstractmethod
    def marked(self) -> Pairs:
        """The pairs among which are all in which something was timed on a busy machine."""

    @abstractmethod
    def settled(self, problem: Problem, device: Device) -> bool:
        """See `Table.settled`."""

    @abstractmethod
    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """See `Table.barred`. The file knows the device."""

    def ops(self) -> Ops:
        """For each device and op the number of problems."""
        pairs = scanning.pages(self._file, _OPS.format(self.table), 2, bulk=True)
        found = Counter((device, op) for _, device, op in pairs)
        return sorted(((device, op, number) for (device, op), number in found.items()), key=lambda one: str(one[1]))

    @abstractmethod
    def counts(self) -> Counts:
        """For each device the number of measurements, or of pooled times and failures: computed by the cost model or
        not."""


class Measured(Held):
    """The measurements of a table that a build or live tuning writes."""

    table = "measurement"

    def rows(self, problem: Problem, device: Device) -> list[Measurement]:
        """Every measurement of a problem on a device, failures included, in a fixed order."""
        args = (problem.key, device.key)
        found = self._file.fetch_few(schema.ROWS_SQL, args, schema.MOST_MEASUREMENTS, "measurements of a problem")
        same = not found or self._cache.problem(problem.key).text == problem.text
        return [self._whole(row) for row in found] if same else []

    def measurements(self) -> Iterator[Measurement]:
        """All measurements. They are read in small pieces, so no writer waits for a slow consumer."""
        return map(self._cache.measurement, scanning.pages(self._file, _ALL, 3))

    def record(self, problem: Problem, device: Device) -> Record | None:
        """The record of the rows."""
        rows = self.rows(problem, device)
        return record(rows) if rows else None

    def marked(self) -> Pairs:
        """By the mark in a row's detail."""
        return scanning.pages(self._file, _MARKED, 2, bulk=True)

    def settled(self, problem: Problem, device: Device) -> bool:
        """False if rows were written since."""
        return not self._file.fetch(schema.PENDING_SQL, (problem.key, device.key))

    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """The configs that were wrong or crashed in some row."""
        args = (problem.key, device.key)
        found = self._file.fetch_few(schema.BARRED_SQL, args, schema.MOST_MEASUREMENTS, "failed configs of a problem")
        return frozenset(self._cache.config(key) for (key,) in found)

    def counts(self) -> Counts:
        """Two for each device."""
        keys = self._file.fetch_few("SELECT id FROM protocol", (), schema.MOST_PROTOCOLS, "protocols")
        computed = ", ".join(str(key) for (key,) in keys if self._cache.protocol(key).clock == "model")
        found: Counter[tuple[int, bool]] = Counter()
        for _, device, every, modelled in scanning.pages(self._file, _SIZES.format(computed), 2, bulk=True):
            found[device, True] += modelled
            found[device, False] += every - modelled
        return [(*key, number) for key, number in found.items()]

    def _whole(self, row: Sequence[Any]) -> Measurement:
        """The measurement of a row, whose key says that it is whole."""
        measurement = self._cache.measurement(row)
        if measurement.key != row[2]:
            raise self._cache.error("a measurement is damaged: it does not match its key")
        return measurement


class Packed(Held):
    """The records of a packed table."""

    table = "record"

    def rows(self, problem: Problem, device: Device) -> list[Measurement]:
        """Raise TableError."""
        raise self._none()

    def measurements(self) -> Iterator[Measurement]:
        """Raise TableError."""
        raise self._none()

    def record(self, problem: Problem, device: Device) -> Record | None:
        """The record as it was packed."""
        found = self._file.fetch(schema.RECORD_SQL, (problem.key, device.key))
        same = found and self._cache.problem(problem.key).text == problem.text
        return self._cache.record(found[0][0], problem.key, device.key) if same else None

    def marked(self) -> Pairs:
        """All: the mark is inside a record."""
        return scanning.pages(self._file, f"SELECT problem, device FROM record WHERE {_AFTER} {_PAGE}", 2)

    def settled(self, problem: Problem, device: Device) -> bool:
        """True: nothing is written."""
        return True

    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """The configs that the record names."""
        found = self._file.fetch(schema.RECORD_SQL, (problem.key, device.key))
        return self._cache.banned(found[0][0], problem.key, device.key) if found else frozenset()

    def counts(self) -> Counts:
        """Two for each device."""
        found: Counter[tuple[int, bool]] = Counter()
        sql = f"SELECT problem, device, data FROM record WHERE {_AFTER} {_PAGE}"
        for _, device, data in scanning.pages(self._file, sql, 2):
            measured, modelled = self._cache.counts(data)
            found[device, False] += measured
            found[device, True] += modelled
        return [(*key, number) for key, number in found.items()]

    def _none(self) -> TableError:
        return TableError(
            f"{self._file.path} is packed: it holds pooled times and no measurements; use the table that it was packed"
            " from, or the archives"
        )
