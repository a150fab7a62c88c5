"""The problems of one op and family that a file has verdicts on, the nearest first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from gemmdb.errors import TableError
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import nearest, schema
from gemmdb.table.handle import Handle
from gemmdb.table.nearest import Metric
from gemmdb.table.row_cache import RowCache


class Families:
    """The families of one open file. `crowded`: the keys of those too large to be read as a whole."""

    def __init__(self, file: Handle, cache: RowCache) -> None:
        self._file, self._cache = file, cache
        self._known: dict[tuple[str, str, int, str], nearest.Family] = {}
        self.crowded: set[int] = set()
        self._resets = 0

    def forget(self) -> None:
        """Forget all that was read, also what another thread is reading now."""
        self._resets += 1
        self._known.clear()
        self.crowded.clear()

    def each(self) -> list[Problem]:
        """See `Table.families`."""
        keys: list[int] = []
        last = -(2**63)
        while found := self._file.fetch(nearest.FAMILY_AFTER, (last,)):
            ((last, key),) = found
            keys.append(key)
            if len(keys) > schema.MOST_FAMILIES:
                raise TableError(f"{self._file.path} holds more than {schema.MOST_FAMILIES:,} families of problems")
        return [self._cache.problem(key) for key in keys]

    def neighbours(
        self, problem: Problem, device: Device, l2: str, limit: int, within: Sequence[float], *, fixed: bool
    ) -> list[Problem]:
        """See `Table.neighbours`. `fixed`: whether the bytes of the file do not change while it is open."""
        if fixed:
            return [one for _, one in self.distances(problem, device, l2, limit, within, nearest.PLAIN, fixed=True)]
        try:
            found = self._nearest(problem, device, l2, limit, within)
        except (TypeError, ValueError) as error:
            raise self._damaged() from error
        return [p for key in found if (p := self._member(key, problem))]

    def distances(
        self,
        problem: Problem,
        device: Device,
        l2: str,
        limit: int,
        within: Sequence[float],
        metric: Metric,
        *,
        fixed: bool,
    ) -> list[tuple[float, Problem]]:
        """See `Table.distances`. `fixed` as for `neighbours`."""
        if fixed:
            family = self._family(problem, device, l2)
        elif (few := self._few(problem, device, l2, within)) is not None:
            family = self._listed(few)
        else:
            known = self.neighbours(problem, device, l2, 2 * limit, within, fixed=False)
            return sorted([(metric.apart(problem, one), one) for one in known], key=itemgetter(0))[:limit]
        try:
            members, found = family.known, family.nearest(problem, limit, within, metric)
        except TypeError as error:
            raise self._damaged() from error
        for _, key in found:
            if key not in members:
                members[key] = one = self._member(key, problem)
                if one is not None and not family.lists(key, one):
                    del members[key]
                    raise self._damaged()
        return [(distance, one) for distance, key in found if (one := members[key])]

    def _nearest(self, problem: Problem, device: Device, l2: str, limit: int, within: Sequence[float]) -> Sequence[int]:
        """The keys of the nearest problems of a family in a file that may change. Of a large family only what is close
        by is read, as long as that is enough."""
        if (few := self._few(problem, device, l2, within)) is not None:
            return nearest.keys(few, problem, limit)
        for ratio in nearest.RATIOS:
            box = [min(ratio, bound) for bound in within or (math.inf,) * 3]
            rows = self._decided(problem, device, l2, box)
            found = nearest.keys(rows, problem, limit, ratio)
            if len(found) == limit:
                return found
        return nearest.keys(self._decided(problem, device, l2, within), problem, limit)

    def _few(self, problem: Problem, device: Device, l2: str, within: Sequence[float]) -> list[tuple[Any, ...]] | None:
        """The keys and sizes of a family's problems, if they are less than a CROWD."""
        if problem.family_key in self.crowded:
            return None
        rows = self._decided(problem, device, l2, within, nearest.CROWD)
        if len(rows) < nearest.CROWD:
            return rows
        self.crowded.add(problem.family_key)
        return None

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
        asked = problem.op, problem.family, device.key, l2
        family = self._known.get(asked)
        if family is None:
            resets = self._resets
            family = self._listed(self._decided(problem, device, l2, ()))
            if len(self._known) >= schema.MOST_FAMILIES:
                self._known.clear()
            if resets == self._resets:
                self._known[asked] = family
        return family

    def _listed(self, rows: list[tuple[Any, ...]]) -> nearest.Family:
        """The family of these rows of the index."""
        try:
            return nearest.Family.of(rows)
        except (TypeError, ValueError) as error:  # SQLite may hand out a NULL, a text or a negative number.
            raise self._damaged() from error

    def _damaged(self) -> TableError:
        """For an index that lists a problem with other sizes than its text has. SQLite takes them from there."""
        return self._cache.error("the index of its problems does not match their texts")

    def _member(self, key: int, problem: Problem) -> Problem | None:
        """The problem of a key, if it is of the same op and family."""
        found = self._cache.problem(key)
        return found if found.op == problem.op and found.family == problem.family else None
