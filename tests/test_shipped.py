"""The shipped tables: what the manifest says, in order, and an answer to the README's question."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

import gemmdb
from gemmdb.generators.files import manifest
from gemmdb.generators.files.verify import verify, verify_kernels
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.key.problem import Query
from gemmdb.lookup import answer
from gemmdb.lookup.expected import with_expectations
from gemmdb.settings import Policy, Settings, shipped_tables
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table
from gemmdb.table.record import RESIDENT, UNKNOWN

TABLES = sorted(shipped_tables().glob("*.db"))


def test_the_manifest_describes_the_shipped_tables():
    assert TABLES
    assert (shipped_tables() / manifest.NAME).read_text() == manifest.text(shipped_tables())


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_a_shipped_table_is_in_order_and_says_where_it_comes_from(path):
    assert list(verify(path)) == []
    with Table.open(path, immutable=True) as table:
        if not table.packed:
            assert {run["run"] for run in table.provenance()} == {row.run for row in table.measurements()}
        assert all(run["command"] and (run.get("date") or run["started"]) for run in table.provenance())


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_every_config_of_a_shipped_table_is_legal(path):
    with Table.open(path, immutable=True) as table:
        for problem, device in table.pairs():
            timed = {one.config for group in table.record(problem, device).groups for one in group.times}
            assert [config.text for config in timed if config.rejection(problem, device)] == []


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
    hit = gemmdb.lookup(gemmdb.Problem.gemm("mixed_mm", m=16, n=4096, k=4096, fusion="scale"), device="NVIDIA H200")
    assert hit is not None
    assert (hit.rung, hit.backend) == ("exact", "triton")
    assert hit.speedup > 1


def test_the_measured_table_fits_into_the_wheel_and_covers_what_it_should():
    path = shipped_tables() / "sm90-nvidia-h200.db"
    with Table.open(path, immutable=True) as table:
        assert path.stat().st_size <= (5 if table.packed else 16) * 2**20
        counts = Counter(problem.op for problem, _ in table.pairs())
    least = {"mm": 1500, "mixed_mm": 1000, "addmm": 800, "int_mm": 600, "scaled_mm": 600, "bmm": 400,
             "grouped_mm": 400}  # fmt: skip
    assert all(counts[op] >= number for op, number in least.items())


def test_the_compiled_kernels_are_intact_and_small():
    assert verify_kernels(prebuilt.shipped()) == []
    archive, size = prebuilt.archive(), prebuilt.shipped().stat().st_size
    assert len(archive.kernels) == 379
    assert size < 1.9 * 2**20


def test_the_compiled_kernels_load_wherever_torch_does():
    """Torch's wheels need glibc 2.28 and libstdc++ of GCC 8. The kernels needed that of GCC 13, which Ubuntu 22.04 and
    Debian 12 lack."""
    archive, needed = prebuilt.archive(), defaultdict(set)
    for name in archive.kernels:
        for library, version in re.findall(rb"(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)\0", archive.read(name)["so"]):
            needed[library].add(tuple(map(int, version.split(b"."))))
    assert len(needed) == 3
    assert max(needed[b"GLIBC"]) <= (2, 28)
    assert max(needed[b"GLIBCXX"]) <= (3, 4, 25)
    assert max(needed[b"CXXABI"]) <= (1, 3, 11)


def _named(problem):
    """What docs/results.md calls a problem's op."""
    if problem.op in ("mm", "addmm"):
        return "mm and addmm"
    return "mixed_mm of int4 weights" if problem.int4 else problem.op


def _answers(policy):
    """By op, the mean gain over ATen of the H200 table's answers to its own problems; how many are CUTLASS's. The time
    of the host does not count."""
    catalog, gains, compiled = Catalog.load(Settings.read()), defaultdict(list), 0
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db", immutable=True) as table:
        asked = list(table.decided())
    for problem, device in asked:
        hit = answer(Query(problem, device), catalog, replace(policy, captured=True), None)
        assert hit is not None
        gains[_named(problem)].append(hit.speedup)
        compiled += hit.config.backend == "cutlass"
    return {op: statistics.geometric_mean(one) for op, one in gains.items()}, compiled


def test_without_nvcc_the_answers_are_those_of_the_whole_table():
    served, compiled = _answers(Policy())
    best, of = _answers(Policy(compile_cost=10))
    assert all(served[op] > 0.99 * best[op] for op in best)
    assert compiled == of
