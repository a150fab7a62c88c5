"""Products of fp8 operands with scales in a file: their kind of scales tells them apart everywhere."""

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

VALUES = {"block_m": 64, "block_n": 64, "block_k": 128, "group_m": 8, "stages": 3, "warps": 4}
TEMPLATE = Config.of("triton", "inductor_mm", **VALUES)
MAPPED = Config.of("triton", "inductor_scaled_tma", **VALUES)
TENSOR, ROW = (Problem.gemm("scaled_mm", m=16, n=64, k=64, scales=scales) for scales in ("tensor", "row"))
FAST = Problem.gemm("scaled_mm", m=16, n=64, k=64, scales="row", fast_accum=True)


@pytest.fixture
def rows(kit):
    """Of three problems that differ in scales and accumulation alone, each has another winner."""
    device = kit.other
    return [
        *(kit.row(problem=problem, device=device) for problem in (TENSOR, ROW, FAST)),
        kit.row(TEMPLATE, 5.0, problem=TENSOR, device=device),
        kit.row(MAPPED, 5.0, problem=ROW, device=device),
        kit.row(MAPPED, 20.0, problem=FAST, device=device),
    ]


def test_each_has_its_own_verdict(kit, rows, tmp_path):
    path = kit.write(tmp_path / "a.db", rows)
    assert verify(path) == []
    with Table.open(path) as table:
        found = {problem: table.verdict(problem, kit.other) for problem in (TENSOR, ROW, FAST)}
        assert {problem: verdict.pick for problem, verdict in found.items()} == {
            TENSOR: TEMPLATE, ROW: MAPPED, FAST: kit.aten,
        }  # fmt: skip
        assert all(verdict.problem == problem for problem, verdict in found.items())
        other = Problem.gemm("scaled_mm", m=16, n=64, k=64, fast_accum=True)
        assert table.verdict(other, kit.other) is None
        (entry,) = (one for one in table.summary() if one["device"] == kit.other.sku)
        assert entry["problems"] == {"scaled_mm": 3}


def test_merging_and_archiving_keep_them_apart(kit, rows, tmp_path):
    one = kit.write(tmp_path / "one.db", [row for row in rows if row.problem == ROW])
    two = kit.write(tmp_path / "two.db", [row for row in rows if row.problem != ROW])
    whole = kit.write(tmp_path / "whole.db", rows)
    merge([one, two], tmp_path / "merged.db")
    assert kit.content(tmp_path / "merged.db") == kit.content(whole)
    found = diff(one, two)
    assert [text for text, _ in found.only_a] == [ROW.text]
    assert {text for text, _ in found.only_b} == {TENSOR.text, FAST.text}
    archive.restore(archive.write(whole, tmp_path / "parts"), tmp_path / "again.db")
    with Store.open(tmp_path / "again.db") as store:
        store.refresh()
    assert kit.content(tmp_path / "again.db") == kit.content(whole)


@pytest.mark.parametrize(
    "changed",
    [("scales=row", "scales=block"), ("scales=row", "scales="), (" scales=row fast=0", ""), ("fast=0", "fast=7"),
     ("a=fp8_e4m3", "a=fp8_e4m3fnuz"), ("b=fp8_e4m3:col", "b=fp8_e4m3:row"), ("out=bf16", "out=fp8_e4m3")],
)  # fmt: skip
def test_a_text_that_is_no_product_is_refused(kit, rows, tmp_path, changed):
    path = kit.write(tmp_path / "a.db", rows)
    assert changed[0] in ROW.text
    with sqlite3.connect(path) as db:
        # The key stays that of the text, as whoever made the file would see to.
        text = ROW.text.replace(*changed)
        db.execute("UPDATE problem SET id = ?, text = ? WHERE id = ?", (canonical.key(text), text, ROW.key))
        db.execute("UPDATE measurement SET problem = ? WHERE problem = ?", (canonical.key(text), ROW.key))
    with Table.open(path) as table, pytest.raises(TableError):
        list(table.measurements())
    assert verify(path)


def test_a_config_of_fp8_solves_nothing_else(kit, tmp_path):
    path = kit.write(tmp_path / "a.db", [kit.row(device=kit.other), kit.row(MAPPED, 5.0, device=kit.other)])
    with Table.open(path) as table, pytest.raises(TableError, match="triton:inductor_scaled_tma does not solve mm"):
        table.verdict(kit.problem, kit.other)
