"""Compacting a table: the shipped file keeps only what verdicts and near answers need."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.generators.files.merge import held, rebuild
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key import canonical
from gemmdb.table.measurement import TIMED, UNSAFE, Measurement
from gemmdb.table.reader import Table
from gemmdb.table.verdict import decide, pool_slow, unsafe


@dataclass(frozen=True)
class Keep:
    """How many rows of each (problem, device, protocol, toolchain class) are kept besides ATen, the tie set and the
    fastest config that was timed as emitted code: the `top` fastest configs, and `sample` of the slower ones, for near
    answers and for fitting the cost model."""

    top: int = 8
    sample: int = 16

    def __post_init__(self) -> None:
        if self.top < 0 or self.sample < 0:
            raise InputError(f"compact keeps at least 0 rows, got top={self.top} sample={self.sample}")


def compact(path: Path, out: Path, keep: Keep | None = None) -> int:
    """Write the table at `path` to `out` without most of the losers and failures; returns how many measurements are
    left.

    Every verdict stays the same to the last bit, and so do the rows of configs that must never be served. Raises
    TableError.
    """
    rule = keep or Keep()
    with held(out), contextlib.closing(Table.open(path)) as table:
        return rebuild([table], out, lambda: _kept(table.measurements(), rule))


def select(rows: Iterable[Measurement], keep: Keep) -> list[Measurement]:
    """What `compact` keeps of all rows of one problem on one device."""
    rows = list(rows)
    banned = unsafe(rows)
    kept = [row for row in rows if row.status in UNSAFE]
    groups: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for row in rows:
        if row.status in TIMED and row.config not in banned:
            groups[row.protocol.text, row.toolchain.klass].append(row)
    for group in groups.values():
        configs = _configs(group, keep)
        kept += [row for row in group if row.config in configs]
    return kept


def _configs(group: list[Measurement], keep: Keep) -> set[Config]:
    pooled = pool_slow(group)
    verdict = decide(group)
    # If any config was timed as emitted code, only such a config can be picked.
    emitted = [one.config for one in pooled if one.emitted][:1]
    always = {ATEN, *emitted, *(verdict.ties if verdict else ())}
    rest = [one.config for one in pooled if one.config not in always]
    # Sorted by the hash of the text: every machine gets the same sample, and no kind of config is preferred.
    sample = sorted(rest[keep.top :], key=lambda config: canonical.key(config.text))[: keep.sample]
    return always.union(rest[: keep.top], sample)


def _kept(rows: Iterator[Measurement], keep: Keep) -> Iterator[Measurement]:
    """Measurements come ordered by problem and device, so one group at a time is in memory."""
    for _, group in groupby(rows, key=lambda row: (row.problem.key, row.device.key)):
        yield from select(group, keep)
