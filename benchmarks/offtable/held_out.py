"""Tables without some of their problems, and what was measured of those."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from gemmdb.generators.files import archive
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.settings import Policy
from gemmdb.table.measurement import Measurement
from gemmdb.table.reader import Table
from gemmdb.table.record import Time
from gemmdb.table.writer import Store

POLICY = Policy(confirm=True, compile_cost=10)
"""As before a confirmation: what the expectations themselves are worth. `against-aten` has what is served without."""
MEASUREMENTS = 4
"""The number of candidates that live tuning measures besides ATen."""


@dataclasses.dataclass(frozen=True)
class Truth:
    """What was measured of one problem, fastest first."""

    problem: Problem
    pooled: Sequence[Time]

    @property
    def best(self) -> float:
        """The least time relative to ATen, among the configs that were measured in full."""
        return min(one.ratio for one in self.pooled if one.servable)

    def share(self, config: Config) -> float | None:
        """The best time over that of `config`, at most 1; None if it was not timed."""
        ratio = next((one.ratio for one in self.pooled if one.config == config), None)
        return None if ratio is None else min(1.0, self.best / ratio)

    def first(self, configs: Iterable[Config]) -> float:
        """The share of the first config that was timed here."""
        return next(share for config in configs if (share := self.share(config)) is not None)


def united(archives: Iterable[Path], table: Path, keep: Callable[[Measurement], bool] | None = None) -> None:
    """Write the rows of the archives and their verdicts into one table; of the rows only those to `keep`."""
    archive.restore(sorted(archives), table, *([keep] if keep else []))
    with Store.open(table) as store:
        store.refresh()


def archives(folders: Iterable[Path]) -> list[Path]:
    """The archives in some folders."""
    return [path for folder in folders for path in sorted(folder.glob("rows-*.jsonl.xz"))]


def truths(whole: Path) -> dict[Problem, Truth]:
    """What was measured of each problem of a table of one device that has a measured ATen, in a fixed order."""
    with closing(Table.open(whole, immutable=True)) as table:
        (device,) = table.devices()
        problems = sorted((problem for problem, _ in table.pairs()), key=lambda problem: problem.text)
        found = (Truth(problem, table.pooled(problem, device)) for problem in problems)
        return {one.problem: one for one in found if any(time.config == ATEN for time in one.pooled)}


def chosen(known: Iterable[Problem], kind: str, most: int) -> list[list[Problem]]:
    """`most` sets of problems to hold out, always the same and in the same order. `kind`: `m` for single problems that
    leave others with their N and K, `nk` for all problems of an (N, K) pair."""
    known = list(known)
    groups: dict[object, list[Problem]] = defaultdict(list)
    cells = Counter((problem.op, problem.family, problem.n, problem.k) for problem in known)
    for problem in known:
        if kind == "nk":
            groups[problem.n, problem.k].append(problem)
        elif cells[problem.op, problem.family, problem.n, problem.k] > 1:
            groups[problem].append(problem)
    # Any choice would do that is always the same. This one orders by hash.
    return sorted(groups.values(), key=lambda held: held[0].key)[:most]


@contextmanager
def without(whole: Path, held: Sequence[Problem]) -> Iterator[Table]:
    """A copy of a table without the rows and verdicts of some problems."""
    path = whole.with_name("rest.db")
    shutil.copyfile(whole, path)
    with closing(Table.open(path)) as table:
        packed = table.packed
    with closing(sqlite3.connect(path)) as db, db:
        for problem in held:
            for name in ("record",) if packed else ("measurement", "verdict"):
                db.execute(f"DELETE FROM {name} WHERE problem = ?", (problem.key,))
    with closing(Table.open(path, immutable=True)) as table:
        yield table
