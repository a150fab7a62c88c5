"""The shipped tables: what the manifest says, in order, and an answer to the README's question."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import gemmdb
from gemmdb.generators.files.manifest import check_manifest
from gemmdb.generators.files.verify import verify
from gemmdb.ladder.expected import with_expectations
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table
from gemmdb.table.record import RESIDENT, UNKNOWN

TABLES = sorted(shipped_tables().glob("*.db"))


def test_the_manifest_describes_the_shipped_tables():
    assert TABLES
    assert check_manifest(shipped_tables()) == []


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_a_shipped_table_is_in_order_and_says_where_it_comes_from(path):
    assert list(verify(path)) == []
    with Table.open(path, immutable=True) as table:
        if not table.packed:
            assert {run["run"] for run in table.provenance()} == {row.run for row in table.measurements()}
        assert all(run["command"] and (run.get("date") or run["started"]) for run in table.provenance())


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_a_packed_table_holds_what_the_present_cost_model_expects(path):
    """If it does not, `python -m tools.release ship` packs it anew; answers are right but slow until then."""
    with Table.open(path, immutable=True) as table:
        for problem, device in list(table.pairs())[::50] if table.packed else ():
            record = table.record(problem, device)
            bare = [replace(group, times=tuple(one._replace(expected=UNKNOWN, flags=one.flags % RESIDENT)
                                               for one in group.times)) for group in record.groups]  # fmt: skip
            assert with_expectations(replace(record, groups=tuple(bare), stamp=0), problem, device) == record


def test_a_gpu_that_is_not_here_can_be_asked_about(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    hit = gemmdb.lookup(gemmdb.Problem.gemm("mixed_mm", m=16, n=4096, k=4096, fusion="scale", device="NVIDIA H200"))
    assert hit is not None
    assert (hit.rung, hit.backend) == ("exact", "triton")
    assert hit.speedup > 1


def test_the_measured_table_fits_into_the_wheel_and_covers_what_it_should():
    path = shipped_tables() / "sm90-nvidia-h200.db"
    with Table.open(path, immutable=True) as table:
        assert path.stat().st_size <= (4 if table.packed else 16) * 2**20
        counts = Counter(problem.op for problem, _ in table.pairs())
    assert all(counts[op] >= least for op, least in {"mm": 1500, "mixed_mm": 1000, "addmm": 800, "int_mm": 600}.items())
