"""What a file holds of each problem and device: its measurements, or in a packed table one record of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gemmdb.errors import TableError
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import schema
from gemmdb.table.handle import Handle
from gemmdb.table.measurement import MARKED, Measurement
from gemmdb.table.record import Record, record
from gemmdb.table.row_cache import RowCache
from gemmdb.table.summary import Counts, Ops

_ALL = (
    f"SELECT {', '.join(schema.COLUMNS)} FROM measurement WHERE (problem, device, id) > (?, ?, ?)"
    " ORDER BY problem, device, id LIMIT 1000"
)
_MARKED = "SELECT DISTINCT problem, device FROM measurement WHERE detail IN (?, ?)"
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
        return self._file.fetch(
            f"SELECT device, op, count(*) FROM (SELECT DISTINCT problem, device FROM {self.table}) AS pair"
            " JOIN problem ON problem.id = pair.problem GROUP BY device, op ORDER BY op",
            (),
            bulk=True,
        )

    @abstractmethod
    def counts(self) -> Counts:
        """For each device the number of measurements, or of pooled times and failures: computed by the cost model or
        not. A device may come several times."""


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
        last = (-(2**63), -(2**63), -(2**63))
        while found := self._file.fetch(_ALL, last):
            for row in found:
                yield self._cache.measurement(row)
            last = found[-1][:3]

    def record(self, problem: Problem, device: Device) -> Record | None:
        """The record of the rows."""
        rows = self.rows(problem, device)
        return record(rows) if rows else None

    def marked(self) -> Pairs:
        """By the mark in a row's detail."""
        return self._file.fetch(_MARKED, MARKED, bulk=True)

    def settled(self, problem: Problem, device: Device) -> bool:
        """False if rows were written since."""
        return not self._file.fetch(schema.PENDING_SQL, (problem.key, device.key))

    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """The configs that were wrong or crashed in some row."""
        args = (problem.key, device.key)
        found = self._file.fetch_few(schema.BARRED_SQL, args, schema.MOST_MEASUREMENTS, "failed configs of a problem")
        return frozenset(self._cache.config(key) for (key,) in found)

    def counts(self) -> Counts:
        """One for each device and protocol."""
        found = self._file.fetch(
            "SELECT device, protocol, count(*) FROM measurement GROUP BY device, protocol", (), bulk=True
        )
        return [(owner, self._cache.protocol(key).clock == "model", number) for owner, key, number in found]

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
        return self._file.fetch("SELECT problem, device FROM record", (), bulk=True)

    def settled(self, problem: Problem, device: Device) -> bool:
        """True: nothing is written."""
        return True

    def barred(self, problem: Problem, device: Device) -> frozenset[Config]:
        """The configs that the record names."""
        found = self._file.fetch(schema.RECORD_SQL, (problem.key, device.key))
        return self._cache.banned(found[0][0], problem.key, device.key) if found else frozenset()

    def counts(self) -> Counts:
        """Two for each record."""
        found = self._file.fetch("SELECT device, data FROM record", (), bulk=True)
        return [(device, bool(modelled), number) for device, data in found
                for modelled, number in enumerate(self._cache.counts(data))]  # fmt: skip

    def _none(self) -> TableError:
        return TableError(
            f"{self._file.path} is packed: it holds pooled times and no measurements; use the table that it was packed"
            " from, or the archives"
        )
