"""Products of batches in a file: the batch is in the text alone, and tells problems apart everywhere."""

from __future__ import annotations

import sqlite3

import pytest

from gemmdb import Config, Problem, TableError
from gemmdb.generators.files import archive
from gemmdb.generators.files.diff import diff
from gemmdb.generators.files.merge import merge
from gemmdb.generators.files.verify import verify
from gemmdb.key import canonical
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

TEMPLATE = Config.of("triton", "inductor_bmm", block_m=64, block_n=64, block_k=64, group_m=8, stages=3, warps=4)
SMALL, LARGE = (Problem.gemm("bmm", batch=batch, m=16, n=64, k=64) for batch in (8, 64))


@pytest.fixture
def rows(kit):
    """Of two problems that differ in their batch alone, the template wins one, and ATen the other."""
    device = kit.other
    return [
        *(kit.row(problem=problem, device=device) for problem in (SMALL, LARGE)),
        kit.row(TEMPLATE, 5.0, problem=SMALL, device=device),
        kit.row(TEMPLATE, 20.0, problem=LARGE, device=device),
    ]


def test_each_batch_has_its_own_verdict(kit, rows, tmp_path):
    path = kit.write(tmp_path / "a.db", rows)
    assert verify(path) == []
    with Table.open(path) as table:
        assert table.verdict(SMALL, kit.other).pick == TEMPLATE
        assert table.verdict(LARGE, kit.other).pick == kit.aten
        assert table.verdict(Problem.gemm("bmm", batch=9, m=16, n=64, k=64), kit.other) is None
        (entry,) = (one for one in table.summary() if one["device"] == kit.other.sku)
        assert entry["problems"] == {"bmm": 2}
        assert {problem.op for problem in table.families()} == {"bmm"}


def test_merging_and_archiving_keep_batches_apart(kit, rows, tmp_path):
    one = kit.write(tmp_path / "one.db", [row for row in rows if row.problem == SMALL])
    two = kit.write(tmp_path / "two.db", [row for row in rows if row.problem == LARGE])
    whole = kit.write(tmp_path / "whole.db", rows)
    merge([one, two], tmp_path / "merged.db")
    assert kit.content(tmp_path / "merged.db") == kit.content(whole)
    found = diff(one, two)
    assert [text for text, _ in found.only_a] == [SMALL.text]
    assert [text for text, _ in found.only_b] == [LARGE.text]
    archive.restore(archive.write(whole, tmp_path / "parts"), tmp_path / "again.db")
    with Store.open(tmp_path / "again.db") as store:
        store.refresh()
    assert kit.content(tmp_path / "again.db") == kit.content(whole)


@pytest.mark.parametrize("batch", ["99999999999", "2147483648", "-1", "08", "", "x"])
def test_a_batch_that_is_none_is_refused(kit, rows, tmp_path, batch):
    path = kit.write(tmp_path / "a.db", rows)
    with sqlite3.connect(path) as db:
        # The key stays that of the text, as whoever made the file would see to.
        text = SMALL.text.replace("batch=8", f"batch={batch}")
        db.execute("UPDATE problem SET id = ?, text = ? WHERE id = ?", (canonical.key(text), text, SMALL.key))
        db.execute("UPDATE measurement SET problem = ? WHERE problem = ?", (canonical.key(text), SMALL.key))
    with Table.open(path) as table, pytest.raises(TableError):
        list(table.measurements())
    assert verify(path)


def test_a_config_of_a_batch_solves_nothing_else(kit, tmp_path):
    path = kit.write(tmp_path / "a.db", [kit.row(device=kit.other), kit.row(TEMPLATE, 5.0, device=kit.other)])
    with Table.open(path) as table, pytest.raises(TableError, match="triton:inductor_bmm does not solve mm"):
        table.verdict(kit.problem, kit.other)
