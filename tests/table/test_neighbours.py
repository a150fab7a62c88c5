"""The nearest problems of a family: those that a search through all of them finds, though SQLite believes its index."""

from __future__ import annotations

import logging
import math
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.btree import File, record
from kit.tables import edit

from gemmdb.errors import TableError
from gemmdb.generators.files.pack import pack
from gemmdb.key.problem import Problem
from gemmdb.lookup import explain
from gemmdb.lookup.neighbours import metric
from gemmdb.settings import Policy
from gemmdb.table import neighbours
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.neighbours import Family, bounds
from gemmdb.table.reader import Table

FORMS = pytest.mark.parametrize("form", ["measurements", "immutable", "packed"])
FAR, NEAR = (16, 256, 256), (48, 2048, 2048)


@pytest.fixture
def opened(lab, tmp_path, form):
    """Makes a table of problems with these sizes, opened in one of its forms after `change` of its file."""
    tables = []

    def make(change, *sizes):
        rows = [row for m, n, k in sizes for row in lab.rows(lab.problem(m, n, k), {lab.cpp(): 0.5})]
        path = lab.catalog(rows).tables[0].path
        if form == "packed":
            path = tmp_path / "small.db"
            pack(lab.opened[-1].path, path)
        change(path)
        tables.append(Table.open(path, immutable=form == "immutable"))
        return tables[-1]

    yield make
    for table in tables:
        table.close()


def is_packed(path):
    with closing(sqlite3.connect(path)) as db:
        return bool(db.execute("SELECT 1 FROM meta WHERE name = 'packed'").fetchone())


def columns(path):
    """The row and its place in the index say that the far problem is the near one."""
    name = "record" if is_packed(path) else "problem"
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(f"UPDATE {name} SET m = ?, n = ?, k = ? WHERE n = ?", (*NEAR, FAR[1])).rowcount == 1


def listed(path, rows):
    """Write the whole index anew, by hand: `rows` changes what is listed (family, n, k, m, id), in order."""
    with closing(sqlite3.connect(path)) as db:
        true = list(db.execute("SELECT family, n, k, m, id FROM problem ORDER BY family, n, k, m, id"))
    file = File(path)
    cells = [bytes([len(cell)]) + cell for cell in (record(*row) for row in sorted(rows(true)))]
    page = bytearray(file.size)
    end, places = file.size, []
    for cell in cells:
        end -= len(cell)
        page[end : end + len(cell)] = cell
        places.append(end)
    page[0], page[3:5], page[5:7] = 0x0A, len(cells).to_bytes(2, "big"), end.to_bytes(2, "big")
    for number, place in enumerate(places):
        page[8 + 2 * number : 10 + 2 * number] = place.to_bytes(2, "big")
    root = file.roots["problem_family"]
    file.data[(root - 1) * file.size : root * file.size] = page
    file.save()


def moved(path):
    """Only the index says so, which is the primary key of a packed table's records."""
    if is_packed(path):
        return columns(path)
    return listed(path, lambda rows: [(f, NEAR[1], NEAR[2], NEAR[0], key) if n == FAR[1] else (f, n, k, m, key)
                               for f, n, k, m, key in rows])  # fmt: skip


def doubled(path):
    """The index has the far problem where it belongs, and where the near one is."""
    if is_packed(path):
        sizes = f"family, {NEAR[1]}, {NEAR[2]}, {NEAR[0]}"
        edit(path, f"INSERT INTO record SELECT {sizes}, batch, device, problem, data FROM record WHERE n = {FAR[1]}")
        return
    listed(path, lambda rows: [*rows, *((f, NEAR[1], NEAR[2], NEAR[0], key) for f, n, k, m, key in rows
                                        if n == FAR[1])])  # fmt: skip


def asked(lab, table):
    return table.distances(lab.problem(44, *NEAR[1:]), lab.cpu, "cold", 8, ())


@FORMS
def test_the_sizes_of_a_sound_index_are_those_of_the_texts(lab, opened):
    found = asked(lab, opened(lambda path: None, FAR, NEAR))
    assert [(one.m, one.n, one.k) for _, one in found] == [NEAR, FAR]
    assert 0 < found[0][0] < 0.2 < 3 < found[1][0]


@FORMS
@pytest.mark.parametrize("change", [columns, moved, doubled])
def test_a_problem_with_the_sizes_of_another_is_not_near(lab, opened, change, caplog):
    table = opened(change, FAR)
    for _ in range(2):
        with pytest.raises(TableError, match="the index of its problems does not match their texts; check it with"):
            asked(lab, table)
    with caplog.at_level(logging.WARNING, "gemmdb"):
        steps = explain(lab.query(lab.problem(44, *NEAR[1:])), Catalog([(Source(table.path, "explicit"), table)]),
                        Policy(near_loss=1.0))  # fmt: skip
    assert steps[1].hit is None
    assert "does not match their texts" in caplog.text


def sized(m):
    """Changes M of the far problem, in the index alone."""

    def change(path):
        if is_packed(path):
            edit(path, ("UPDATE OR IGNORE record SET m = ? WHERE n = ?", (m, FAR[1])))
        else:
            listed(path, lambda rows: [(f, n, k, m if n == FAR[1] else old, key) for f, n, k, old, key in rows])

    return change


def said(method, *args):
    try:
        return method(*args)
    except TableError as error:
        return str(error)


@FORMS
@pytest.mark.parametrize("m", [None, -7, 16.5, "x", b"x"], ids=str)
@pytest.mark.parametrize("crowd", [1, 2000])
def test_a_size_that_is_none_is_damage_or_not_found(lab, opened, m, crowd, monkeypatch):
    """SQLite takes a column without NULLs at its word, and does not compare one."""
    monkeypatch.setattr(neighbours, "CROWD", crowd)
    table, asked = opened(sized(m), FAR), lab.problem(44, *FAR[1:])
    right = neighbours.PLAIN.apart(asked, lab.problem(*FAR)), lab.problem(*FAR)
    for method in (table.distances, table.neighbours):
        found = said(method, asked, lab.cpu, "cold", 8, ())
        assert found in ([], [right], [right[1]]) or "does not match their texts" in found


@pytest.mark.parametrize("form", ["measurements"])
@pytest.mark.parametrize("change", [columns, moved, doubled])
def test_in_a_crowd_distances_are_those_of_the_texts(lab, opened, change, monkeypatch):
    monkeypatch.setattr(neighbours, "CROWD", 1)
    found = asked(lab, opened(change, FAR))
    assert {(one.m, one.n, one.k) for _, one in found} == {FAR}
    assert all(distance > 3 for distance, _ in found)


SIZES = st.integers(1, 60).map(lambda size: 8 * size)


@pytest.fixture(scope="module")
def table(kit, tmp_path_factory):
    """A family of 400 problems, some of them close to each other, in a file that may change and in one that may not."""
    pairs = [(n, k) for n in (1, 2, 30, 31, 32, 60) for k in (1, 8, 9, 10, 50, 55)]
    rows = (1, 2, 16, 17, 18, 19, 20, 21, 64, 500)
    problems = [kit.problem.resized(m, 8 * n, 8 * k) for m in rows for n, k in pairs]
    path = kit.write(tmp_path_factory.mktemp("near") / "t.db", [kit.row(problem=problem) for problem in problems])
    with Table.open(path) as opened, Table.open(path, immutable=True) as fixed:
        yield opened, fixed, problems


@given(m=st.integers(1, 600), n=SIZES, k=SIZES, limit=st.integers(1, 40), bound=st.sampled_from([(), (4.0, 2.0, 8.0)]))
@settings(max_examples=150, deadline=None)
def test_a_large_family_is_searched_as_a_small_one_and_one_that_may_change_as_a_fixed_one(
    kit, table, m, n, k, limit, bound
):
    opened, fixed, problems = table
    query = kit.problem.resized(m, n, k)

    def distance(one):
        return sum((math.log(a) - math.log(b)) ** 2 for a, b in ((one.m, m), (one.n, n), (one.k, k))), one.key

    def inside(one):
        ends = neighbours.bounds(query, bound)
        return all(low <= size <= high for size, (low, high) in zip((one.n, one.k, one.m), ends, strict=True))

    wanted = sorted(filter(inside, problems), key=distance)[:limit]
    with pytest.MonkeyPatch.context() as patch:
        for crowd in (5, 10_000):
            patch.setattr(neighbours, "CROWD", crowd)
            opened._families._crowded.clear()
            found = opened.neighbours(query, kit.device, limit=limit, within=bound)
            assert [round(distance(one)[0], 9) for one in found] == [round(distance(one)[0], 9) for one in wanted]
    args = query, kit.device, "cold", limit, bound, neighbours.Metric(rows=0.4, tiles=0.8)
    assert opened.distances(*args) == fixed.distances(*args)


ANY_SIZE = st.integers(0, 400)


@given(
    rows=st.lists(st.tuples(ANY_SIZE, ANY_SIZE, ANY_SIZE), max_size=60, unique=True),
    asked=st.tuples(ANY_SIZE, ANY_SIZE, ANY_SIZE), limit=st.integers(1, 20),
    within=st.sampled_from([(), (32.0, 8.0, 8.0)]), metric=st.sampled_from([metric("cpu"), metric("cuda")]),
)  # fmt: skip
def test_the_nearest_of_a_family_are_those_of_all(rows, asked, limit, within, metric):
    problem = Problem.gemm("mm", m=8, n=8, k=8).resized(*asked)
    family = Family.of([(key, *sizes) for key, sizes in enumerate(rows)])
    (n0, n1), (k0, k1), (m0, m1) = bounds(problem, within)

    def distance(key):
        return metric.apart(problem, problem.resized(*rows[key]))

    inside = [
        key for key, (m, n, k) in enumerate(rows) if m0 <= m <= m1 and n0 <= n <= n1 and k0 <= k <= k1
    ]  # fmt: skip
    found = family.nearest(problem, limit, within, metric)
    assert len(found) == min(limit, len(inside))
    assert {key for _, key in found} <= set(inside)
    assert [far for far, _ in found] == [distance(key) for _, key in found]
    assert [far for far, _ in found] == pytest.approx(sorted(map(distance, inside))[:limit])
