"""The nearest problems of a family, which may be large: those that a search through all of them finds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdb.table import neighbours
from gemmdb.table.reader import Table

SIZES = st.integers(1, 60).map(lambda size: 8 * size)


@pytest.fixture(scope="module")
def table(kit, tmp_path_factory):
    """A family of 400 problems, some of them close to each other."""
    pairs = [(n, k) for n in (1, 2, 30, 31, 32, 60) for k in (1, 8, 9, 10, 50, 55)]
    rows = (1, 2, 16, 17, 18, 19, 20, 21, 64, 500)
    problems = [kit.problem.resized(m, 8 * n, 8 * k) for m in rows for n, k in pairs]
    path = kit.write(tmp_path_factory.mktemp("near") / "t.db", [kit.row(problem=problem) for problem in problems])
    with Table.open(path) as opened:
        yield opened, problems


@given(m=st.integers(1, 600), n=SIZES, k=SIZES, limit=st.integers(1, 40), bound=st.sampled_from([(), (4.0, 2.0, 8.0)]))
@settings(max_examples=150, deadline=None)
def test_a_large_family_is_searched_as_a_small_one(kit, table, m, n, k, limit, bound):
    opened, problems = table
    asked = kit.problem.resized(m, n, k)

    def distance(one):
        pairs = ((one.m, m), (one.n, n), (one.k, k))
        return sum((math.log(a) - math.log(b)) ** 2 for a, b in pairs), one.key

    def inside(one):
        ends = neighbours.bounds(asked, bound)
        return all(low <= size <= high for size, (low, high) in zip((one.n, one.k, one.m), ends, strict=True))

    family = [one for one in problems if one.family == asked.family and inside(one)]
    wanted = sorted(family, key=distance)[:limit]
    with pytest.MonkeyPatch.context() as patch:
        for crowd in (5, 10_000):
            patch.setattr(neighbours, "CROWD", crowd)
            opened._families._crowded.clear()
            found = opened.neighbours(asked, kit.device, limit=limit, within=bound)
            assert [round(distance(one)[0], 9) for one in found] == [round(distance(one)[0], 9) for one in wanted]


@given(m=st.integers(1, 600), n=SIZES, k=SIZES, limit=st.integers(1, 40), bound=st.sampled_from([(), (4.0, 2.0, 8.0)]))
@settings(max_examples=100, deadline=None)
def test_a_file_that_may_change_has_the_same_neighbours_by_a_metric(kit, table, m, n, k, limit, bound):
    opened, _ = table
    asked, metric = kit.problem.resized(m, n, k), neighbours.Metric(rows=0.4, tiles=0.8)
    with Table.open(opened.path, immutable=True) as fixed:
        wanted = fixed.distances(asked, kit.device, "cold", limit, bound, metric)
    assert opened.distances(asked, kit.device, "cold", limit, bound, metric) == wanted
