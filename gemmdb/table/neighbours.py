"""Finds the nearest problems with verdicts in a problem's family, using an index on family and sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from operator import itemgetter
from typing import Any, NamedTuple

from gemmdb.errors import TableError
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table import schema
from gemmdb.table.handle import Handle
from gemmdb.table.nearby_sql import bounds, packed_statement, statement
from gemmdb.table.row_cache import RowCache

LOG_ROWS = 4.0  # log2 of the smallest tile's 16 rows. Fewer rows take about as long.
CROWD = 2_000  # Families with this many problems are searched in growing boxes around the problem
RATIOS = (1.02, 1.1, 1.3, 2.0, 4.0)  # Half the box sides, as ratios of sizes
_SHAPES, _ENTRIES = 256, 200_000
"""Maximum number of (N, K) pairs per family with cached surroundings, and of pairs in all of these."""
_NEXT_FAMILY = "SELECT family, id FROM problem INDEXED BY problem_family WHERE family > ? ORDER BY family LIMIT 1"
"""Selects a problem of the family with the next larger key, with one probe of the index."""
_NEXT_PACKED = "SELECT family, n, k, m, batch, problem FROM record WHERE family > ? ORDER BY family LIMIT 1"
"""The same in a packed table, where the primary key of its records is the index."""

_PROBLEMS = "problems of a family"

Row = tuple[Any, ...]
_Member = tuple[float, float, int, int]  # log2 of M, the larger of that and LOG_ROWS, M, and the key
_Around = tuple[float, list[_Member]]


class Metric(NamedTuple):
    """Distance between two problems: Euclidean over the base-2 logs of their sizes. `rows`: the weight of M; `tiles`:
    an extra weight of M above the rows of the smallest tile."""

    rows: float = 1.0
    tiles: float = 0.0

    def apart(self, one: Problem, other: Problem) -> float:
        """Return the distance in doublings. It equals `Family.nearest` to the last bit, so a problem in several tables
        has the same distance in all of them."""
        (m, n, k), (a, b, c) = one.doublings, other.doublings
        tiles = max(a, LOG_ROWS) - max(m, LOG_ROWS)
        along_m = self.rows**2 * (a - m) * (a - m) + self.tiles**2 * tiles * tiles
        return math.sqrt(along_m + ((b - n) * (b - n) + (c - k) * (c - k)))


PLAIN = Metric()


class _Pair(NamedTuple):
    """The members of a family with the same N and K, and the base-2 logs of these."""

    log_n: float
    log_k: float
    n: int
    k: int
    members: list[_Member]


@dataclass(frozen=True, slots=True)
class Family:
    """The problems of a family. `sizes`: M, N and K in the index, and the batch in a packed table, by key. `known`: the
    problems read so far, by key;
    None for a key of a problem in another family, as in a hostile file. `around`: cached results of `_around`."""

    pairs: Sequence[_Pair]
    sizes: Mapping[int, tuple[int, ...]]
    known: dict[int, Problem | None] = field(default_factory=dict)
    around: dict[tuple[int, int, tuple[int, int, int, int]], list[_Around]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Family:
        """Build a family from the `rows` of a `statement`. Raises ValueError for a repeated key, TypeError or
        ValueError for invalid sizes."""
        pairs: dict[tuple[int, int], _Pair] = {}
        sizes = {key: tuple(sizes) for key, *sizes in rows}
        if len(sizes) < len(rows):
            raise ValueError("the index lists a problem twice")
        log = math.log2
        for key, m, n, k, *_ in rows:
            pair = pairs.get((n, k))
            if pair is None:
                pair = pairs[n, k] = _Pair(log(n or 1), log(k or 1), n, k, [])
            height = log(m or 1)
            pair.members.append((height, max(height, LOG_ROWS), m, key))
        return cls(list(pairs.values()), sizes)

    def nearest(self, problem: Problem, limit: int, within: Sequence[float], metric: Metric) -> list[tuple[float, int]]:
        """Return the distances and keys of up to `limit` problems within the bounds `within`, nearest first, including
        the problem itself."""
        m = problem.doublings[0]
        tiles, (by_rows, by_tiles) = max(m, LOG_ROWS), (metric.rows**2, metric.tiles**2)
        (n0, n1), (k0, k1), (m0, m1) = bounds(problem, within)
        found: list[tuple[float, int]] = []
        farthest = math.inf
        for beside, members in self._around(problem, (n0, n1, k0, k1)):
            if beside > farthest:  # Its members are farther away than all results so far.
                break
            found += [
                (by_rows * (a - m) * (a - m) + by_tiles * (t - tiles) * (t - tiles) + beside, key)
                for a, t, height, key in members
                if m0 <= height <= m1
            ]
            if len(found) >= 2 * limit:  # Not after each pair: that would sort too often.
                found.sort()
                del found[limit:]
                farthest = found[-1][0] if found else 0.0
        found.sort()
        return [(math.sqrt(square), key) for square, key in found[:limit]]

    def _around(self, problem: Problem, within: tuple[int, int, int, int]) -> Sequence[_Around]:
        """Return the pairs around N and K, nearest first: their squared distances and members. `within`: minimum and
        maximum N and K. Cached, because many problems of a program share N and K."""
        where = problem.n, problem.k, within
        known = self.around.get(where)
        if known is None:
            if len(self.around) >= min(_SHAPES, _ENTRIES // max(len(self.pairs), 1)):
                self.around.clear()
            (_, log_n, log_k), (n0, n1, k0, k1) = problem.doublings, within
            known = [
                ((b - log_n) * (b - log_n) + (c - log_k) * (c - log_k), members)
                for b, c, columns, depth, members in self.pairs
                if n0 <= columns <= n1 and k0 <= depth <= k1
            ]
            known.sort(key=itemgetter(0))
            self.around[where] = known
        return known


class Families:
    """The families of one open file. `_crowded`: the keys of families too large to read as a whole."""

    def __init__(self, file: Handle, cache: RowCache) -> None:
        self._file, self._cache = file, cache
        self._known: dict[tuple[str, str, int, str], Family] = {}
        self._crowded: set[int] = set()
        self._resets = 0

    def forget(self) -> None:
        """Clear the cache, and discard reads in progress in other threads."""
        self._resets += 1
        self._known.clear()
        self._crowded.clear()

    def each(self) -> list[Problem]:
        """See `Table.families`."""
        self._file.ensure()
        if self._cache.packed:
            return self._cache.consistent(self._each_packed)
        keys: list[int] = []
        for _, key in self._file.pages(_NEXT_FAMILY, 1):
            keys.append(key)
            if len(keys) > schema.MOST_FAMILIES:
                raise self._crowded_file()
        return [self._cache.problem(key) for key in keys]

    def _each_packed(self) -> list[Problem]:
        found: list[Problem] = []
        for *place, key in self._file.pages(_NEXT_PACKED, 1):
            found.append(self._cache.problem_at(tuple(place), key))
            if len(found) > schema.MOST_FAMILIES:
                raise self._crowded_file()
        return found

    def _crowded_file(self) -> TableError:
        return TableError(f"{self._file.path} holds more than {schema.MOST_FAMILIES:,} families of problems")

    def distances(
        self,
        problem: Problem,
        device: Device,
        l2: str,
        limit: int,
        within: Sequence[float],
        metric: Metric,
        fixed: bool,
    ) -> list[tuple[float, Problem]]:
        """See `Table.distances`. `fixed`: whether the file does not change while it is open."""
        try:
            if fixed:
                family = self._family(problem, device, l2)
            elif (few := self._few(problem, device, l2, within)) is not None:
                family = Family.of(few)
            else:
                keys = self._in_boxes(problem, device, l2, 2 * limit, within)
                members = [one for key in keys if (one := self._member(key, problem))]
                return sorted([(metric.apart(problem, one), one) for one in members], key=itemgetter(0))[:limit]
            found = family.nearest(problem, limit, within, metric)
        except (TypeError, ValueError) as error:  # SQLite may return a NULL, a text or a negative number.
            raise self._damaged() from error
        known = family.known
        for _, key in found:
            if key not in known:
                sizes = family.sizes[key]
                one = self._packed_member(key, problem, sizes) if self._cache.packed else self._member(key, problem)
                if one is not None and sizes[:3] != (one.m, one.n, one.k):
                    raise self._damaged()
                known[key] = one
        return [(distance, one) for distance, key in found if (one := known[key])]

    def _in_boxes(
        self, problem: Problem, device: Device, l2: str, limit: int, within: Sequence[float]
    ) -> Sequence[int]:
        """Return the keys of the nearest problems in a crowded family, reading only nearby rows if these are enough."""
        for ratio in RATIOS:
            box = [min(ratio, bound) for bound in within or (math.inf,) * 3]
            found = nearest_keys(self._decided(problem, device, l2, box), problem, limit, ratio)
            if len(found) == limit:
                return found
        return nearest_keys(self._decided(problem, device, l2, within), problem, limit)

    def _few(self, problem: Problem, device: Device, l2: str, within: Sequence[float]) -> list[Row] | None:
        """Return the keys and sizes of a family's problems if there are fewer than CROWD."""
        if problem.family_key in self._crowded:
            return None
        rows = self._decided(problem, device, l2, within, CROWD)
        if len(rows) < CROWD:
            return rows
        self._crowded.add(problem.family_key)
        return None

    def _decided(
        self, problem: Problem, device: Device, l2: str, within: Sequence[float], most: int | None = None
    ) -> list[Row]:
        """Return the keys and sizes of a family's problems with a measured verdict; `most`: row limit."""
        self._file.ensure()
        if self._cache.packed:
            return self._cache.consistent(lambda: self._decided_packed(problem, device, l2))
        ids = self._file.fetch("SELECT id FROM protocol", (), schema.MOST_PROTOCOLS, "protocols")
        protocols = {key: self._cache.protocol(key) for (key,) in ids}
        wanted = [key for key, known in protocols.items() if known.l2 == l2 and known.clock != "model"]
        query = statement(problem, device.key, wanted, within, most)
        return self._file.fetch(*query, schema.MOST_PROBLEMS, _PROBLEMS)

    def _decided_packed(self, problem: Problem, device: Device, l2: str) -> list[Row]:
        """Return the keys, sizes and batches of all problems of a family with a measured verdict in a packed table."""
        place = self._cache.place(problem, device)
        if place is None:
            return []
        return self._file.fetch(packed_statement(l2), (place[0], place[-1]), schema.MOST_PROBLEMS, _PROBLEMS)

    def _family(self, problem: Problem, device: Device, l2: str) -> Family:
        """Return all problems of a family, read once."""
        place = problem.op, problem.family, device.key, l2
        family = self._known.get(place)
        if family is None:
            resets = self._resets
            family = Family.of(self._decided(problem, device, l2, ()))
            if len(self._known) >= schema.MOST_FAMILIES:
                self._known.clear()
            if resets == self._resets:
                self._known[place] = family
        return family

    def _damaged(self) -> TableError:
        """Return the error for an index whose sizes differ from the problem's text. SQLite reads the sizes from the
        index."""
        return self._cache.error("the index of its problems does not match their texts")

    def _member(self, key: int, problem: Problem) -> Problem | None:
        """Return the problem of a key, if it has the same op and family."""
        found = self._cache.problem(key)
        return found if found.op == problem.op and found.family == problem.family else None

    def _packed_member(self, key: int, problem: Problem, sizes: Sequence[int]) -> Problem | None:
        """Return the problem of a key and these sizes in a packed table, whose primary key is the index."""
        family = self._cache.numbering().family(problem)
        m, n, k, batch = sizes
        try:
            return None if family is None else self._cache.problem_at((family, n, k, m, batch), key)
        except TableError as error:
            raise self._damaged() from error


def nearest_keys(rows: Iterable[Row], problem: Problem, limit: int, ratio: float = math.inf) -> list[int]:
    """Return the keys of up to `limit` problems in `rows` (the result of a `statement`), nearest first by Euclidean
    distance of (log M, log N, log K), including the problem itself. The maximum distance is that of a problem with one
    size at this `ratio`."""
    log = math.log
    m, n, k = (log(max(size, 1)) for size in (problem.m, problem.n, problem.k))
    found, farthest = [], log(ratio) ** 2
    for key, height, columns, depth in rows:
        a, b, c = log(height or 1) - m, log(columns or 1) - n, log(depth or 1) - k
        found.append((a * a + b * b + c * c, key))
    return [key for distance, key in nsmallest(limit, found) if distance <= farthest]
