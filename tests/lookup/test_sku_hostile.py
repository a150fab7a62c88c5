"""Whatever a table says of another GPU and its rows, a lookup answers from it, misses, or leaves the table out."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from gemmdb.devices import registry
from gemmdb.errors import TableError
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.reader import Table

H100, H200 = registry.find("NVIDIA H100 80GB HBM3"), registry.find("NVIDIA H200")
THIN = Problem.gemm("mm", m=16, n=4096, k=4096)
TILES = {
    Config.of(
        "triton", "tile", block_m=16, block_n=n, block_k=64, group_m=8, split_k=1, reduce="none", swap=0,
        load="pointer", dequant="cast", warps=4, stages=3,
    ): ratio
    for n, ratio in ((32, 0.5), (64, 0.6))
}  # fmt: skip
NASTY = (2**63 - 1, -1, 0, 9e999, -1e308, 5e-324, "", "x\n" * 1000, "%00", "~", "{}", b"\xff" * 40)


@pytest.mark.parametrize("table", ["device", "measurement", "verdict"])
def test_any_value_in_any_column(lab, table):
    lab.catalog([*lab.rows(THIN, TILES, device=H100, clock="graph")])
    (path,) = lab.folder.glob("*.db")
    whole = path.read_bytes()
    with closing(sqlite3.connect(path)) as db:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    answers = 0
    for column, value in ((column, value) for column in columns for value in NASTY):
        path.write_bytes(whole)
        with suppress(sqlite3.IntegrityError), closing(sqlite3.connect(path)) as db, db:
            db.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
        with suppress(TableError), Table.open(path) as opened:
            hit = answer(lab.query(THIN, H200), Catalog([(Source(path, "explicit"), opened)]), Policy(model=False))
            assert hit is None or (hit.rung == "sku" and hit.config in TILES and 0 < hit.expected_us < 1e12)
            answers += hit is not None
    assert answers


@pytest.mark.parametrize("figures", [{"smem_bytes": 0}, {"smem_bytes": -1}, {"l2_bytes": 0}, {"l2_bytes": 1e300}])
@pytest.mark.parametrize("units", [1, 132, 2**31 - 1])
def test_absurd_figures_of_another_gpu(lab, figures, units):
    other = replace(H100, units=units, figures={**H100.figures, **figures})
    catalog = lab.catalog([*lab.rows(THIN, TILES, device=other, clock="graph")])
    hit = answer(lab.query(THIN, H200), catalog, Policy(model=False))
    assert hit is None or (hit.config in TILES and 0 < hit.expected_us < 1e12)
