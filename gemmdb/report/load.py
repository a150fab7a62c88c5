"""Which times come only from a busy machine. They may be too long, and a page says so."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gemmdb.errors import InputError, TableError
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table


class BusyTimes:
    """Answers `Table.disturbed` for tables by their path. A table that is not among `tables` is opened when it is first
    asked for; a file that cannot be read has no busy times. Use it as a context manager, which closes these."""

    def __init__(self, tables: Iterable[Table] = ()) -> None:
        self._tables: dict[str, Table | None] = {str(table.path): table for table in tables}
        self._opened: list[Table] = []

    def __enter__(self) -> BusyTimes:
        return self

    def __exit__(self, *_: object) -> None:
        for table in self._opened:
            table.close()

    def has(self, path: str, problem: Problem, device: Device, config: str) -> bool:
        """Whether the table at `path` has timed a config (its text), or ATen, only on a busy machine. False without a
        path, and for a config of Inductor's own search."""
        try:
            table = self._table(path) if path else None
            return table is not None and table.disturbed(problem, device, Config.parse(config))
        except (TableError, InputError):
            return False

    def _table(self, path: str) -> Table | None:
        if path not in self._tables:
            self._tables[path] = None  # It stays so if the file cannot be opened.
            table = self._tables[path] = Table.open(Path(path))
            self._opened.append(table)
        return self._tables[path]
