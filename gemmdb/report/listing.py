"""Text listing of a file: the verdicts of a table, or the GEMMs of a workload."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

from gemmdb.errors import InputError, choices
from gemmdb.report.rows import Row, geometric, rows
from gemmdb.table.reader import Table
from gemmdb.workload import entries
from gemmdb.workload.entries import Entry

ORDERS: dict[str, Callable[[Row], tuple[float, ...]]] = {
    "gain": lambda row: (-row.gain,),
    "time": lambda row: (-row.verdict.expected_us,),
    "size": lambda row: (row.verdict.problem.m, row.verdict.problem.n, row.verdict.problem.k),
}
"""Sort orders for the verdicts of a table."""


@dataclass(frozen=True)
class Listing:
    """Part of a file. `rows`: verdicts of a table; `products`: (first line in the file, entry) of a workload.
    `matching`: total number of matches in the file, of which these are the first; `gain`: geometric mean over all
    matches; `loads`: for each row, the number of configs timed only on a busy machine, then the number of timed
    configs; `loaded`: how many of all matches have such configs."""

    rows: tuple[Row, ...] = ()
    products: tuple[tuple[int, Entry], ...] = ()
    matching: int = 0
    gain: float = 1.0
    loads: tuple[tuple[int, int], ...] = ()
    loaded: int = 0


def listing(path: Path, words: Sequence[str], order: str, limit: int) -> Listing:
    """Return the first `limit` verdicts or GEMMs of a file (0: all) whose texts contain all of the `words`. Raises
    InputError or TableError if the file is neither a table nor a workload."""
    if entries.is_table(path):
        return _of_table(path, words, order, limit)
    workload = entries.read(path)
    found = [
        (number, entry)
        for number, entry in zip(workload.numbers, workload.entries, strict=True)
        if _matches(words, entry.problem.text)
    ]
    return Listing(products=tuple(found[: limit or None]), matching=len(found))


def _of_table(path: Path, words: Sequence[str], order: str, limit: int) -> Listing:
    if order not in ORDERS:
        raise InputError(f"cannot sort by {order!r}; {choices(order, ORDERS)}")
    gains: list[float] = []
    loaded = 0
    with Table.open(path) as table:
        if table.packed:  # Records are read by key below; a file whose pages repeat is refused, whatever matches.
            deque(table.pairs(), maxlen=0)

        def matching() -> Iterator[Row]:
            nonlocal loaded
            for row in rows(table, lambda one: _matches(words, f"{one.problem.text} {one.pick.text}")):
                gains.append(row.gain)
                loaded += _load(table, row) != (0, 0)
                yield row

        # A large table has more verdicts than fit in memory; keep only the few to show.
        found = nsmallest(limit, matching(), ORDERS[order]) if limit else sorted(matching(), key=ORDERS[order])
        loads = tuple(_load(table, row) for row in found)
    return Listing(tuple(found), (), len(gains), geometric(gains), loads, loaded)


def _load(table: Table, row: Row) -> tuple[int, int]:
    """The number of configs timed only on a busy machine, and of all timed configs; zeros if there are none of them."""
    record = table.record(row.verdict.problem, row.verdict.device)
    if record is None or not record.under_load:
        return 0, 0
    return len(record.under_load), len({time.config for time in record.measured})


def _matches(words: Sequence[str], text: str) -> bool:
    """Whether a text contains all words. A word with `=` must match whole, since `m=16` must not match `block_m=16`."""
    parts = set(text.split())
    return all(word in (parts if "=" in word else text) for word in words)
