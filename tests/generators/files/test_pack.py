"""Packing: the same answers from a small file, and the same bytes for the same rows."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.devices import H200
from kit.gpu import ALGORITHM, make
from kit.lab import Lab
from kit.tables import GEMM, SIZES, Kit, tile

from gemmdb.generators.files.diff import diff
from gemmdb.generators.files.pack import pack
from gemmdb.generators.files.verify import verify
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.cublaslt_nearby import activated
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup import expected, explain
from gemmdb.lookup.acceptance.tuning import candidates
from gemmdb.lookup.ask import Ask
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table
from gemmdb.table.record import UNKNOWN

KIT = Kit()
FILES = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
_number = itertools.count()


TILES = (tile(), tile(block_n=128), tile(block_m=128, block_n=128), tile(split_k=8, reduce="fixup"), tile(stages=4))
LIBRARY = Config.of("cublaslt", "matmul", **ALGORITHM)
TOOLCHAINS = (Toolchain(torch="2.11.0", cuda="13.0"), Toolchain(torch="2.9.0", cuda="12.8"))


def path_of(tmp_path: Path) -> Path:
    return tmp_path / f"{next(_number)}.db"


def packed(tmp_path: Path, rows) -> tuple[Path, Path]:
    """A table of these rows, and its packed form."""
    full, small = KIT.write(path_of(tmp_path), rows), path_of(tmp_path)
    pack(full, small)
    return full, small


@st.composite
def gpu_rows(draw):
    """Rows of tiles and an algorithm on an H200: some slow, disturbed or wrong, of two toolchain classes."""
    found = []
    for problem in draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=4, unique=True)):
        ratios = {config: draw(st.floats(0.3, 3)) for config in draw(st.sets(st.sampled_from((*TILES, LIBRARY))))}
        status = draw(st.sampled_from([Status.OK, Status.OK, Status.SLOW]))
        spread = draw(st.sampled_from([0.001, 0.02, 0.3]))
        how = {"status": status, "spread": spread, "aten_us": draw(st.floats(5, 500))}
        rows = Lab.rows(problem, ratios, device=H200, clock="graph", **how)
        toolchain = draw(st.sampled_from(TOOLCHAINS))
        found += [replace(row, toolchain=toolchain) for row in rows]
    wrong = draw(st.lists(st.sampled_from(found), max_size=2))
    return found + [replace(row, status=Status.WRONG, times=None, run="wrong") for row in wrong]


def steps(path: Path, query: Query, toolchain: Toolchain | None, policy: Policy) -> object:
    """All that the ladder says of a query by one table, without the table's name."""
    catalog = Catalog.load(Settings((), path.with_name("user.db"), "aten"), tables=[path])
    only = Catalog([entry for entry in catalog._entries if entry[1].path == path])
    said = explain(query, only, policy, toolchain)
    tried = candidates(Ask(query, only.tables, policy, toolchain))
    catalog.close()
    return repr([said, tried]).replace(str(path), "table")


@FILES
@given(rows=gpu_rows(), m=st.sampled_from([16, 20, 64, 100]), n=st.sampled_from([1024, 1152]), klass=st.booleans(),
       policy=st.sampled_from([Policy(), Policy(confirm=True, near_loss=1.0), Policy(deny="block_n=64")]))  # fmt: skip
def test_packing_changes_no_answer_on_a_gpu(tmp_path, rows, m, n, klass, policy):
    full, small = packed(tmp_path, rows)
    assert verify(small) == []
    query = Query(GEMM.resized(m, n, 4096), H200)
    toolchain = TOOLCHAINS[0] if klass else None
    assert steps(small, query, toolchain, policy) == steps(full, query, toolchain, policy)


@pytest.mark.parametrize(
    ("kernels", "library", "few"),
    [(7, LIBRARY, True), (8, LIBRARY, False), (7, activated(LIBRARY, "relu"), True), (7, None, False)],
)
def test_a_table_tells_where_few_kernels_were_timed_beside_a_librarys_algorithms(tmp_path, kernels, library, few):
    """A kernel that was wrong, or that failed, is not among the timed ones."""
    found = [make("tile", stages=stages) for stages in range(1, 1 + kernels)]
    wrong, failed = make("tile", block_n=32), make("tile", block_n=128)
    rows = [*Lab.rows(GEMM, dict.fromkeys(found + [library] * bool(library), 0.5), device=H200, clock="graph")]
    rows += [*Lab.rows(GEMM, {wrong: 0.5}, device=H200, clock="graph", run="first")][1:]
    for config, status in ((wrong, Status.WRONG), (failed, Status.ERROR)):
        rows += [*Lab.rows(GEMM, {config: 1.0}, device=H200, clock="graph", status=status, run="second")][1:]
    for path in packed(tmp_path, rows):
        with Table.open(path) as table:
            assert table.few_kernels(GEMM, H200) == table.few_kernels(GEMM, H200) == few
            assert not table.few_kernels(GEMM.resized(1, 1, 1), H200)


@FILES
@given(rows=gpu_rows())
def test_expectations_of_another_cost_model_are_computed_anew(tmp_path, rows):
    full, small = packed(tmp_path, rows)
    query = Query(GEMM.resized(100, 1152, 4096), H200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected, "stamp_of", lambda device: 5)
        refitted = steps(small, query, None, Policy())
    assert refitted == steps(small, query, None, Policy()) == steps(full, query, None, Policy())


def test_most_answers_of_the_property_tests_are_of_rung_near(tmp_path):
    rows = [row for size in SIZES for row in Lab.rows(size, dict.fromkeys(TILES, 0.5), device=H200, clock="graph")]
    _, small = packed(tmp_path, rows)
    with Table.open(small) as table:
        times = [one for group in table.record(SIZES[0], H200).groups for one in group.times]
    assert all(one.expected != UNKNOWN for one in times)
    assert {one.resident > 0 for one in times} == {False, True}
    query = Query(GEMM.resized(100, 1152, 4096), H200)
    found = explain(query, Catalog([(Source(small, "explicit"), Table.open(small))]), Policy())
    assert "near" in {step.rung for step in found if step.hit}


@FILES
@given(rows=KIT.rows())
def test_packing_changes_no_verdict_and_no_answer_on_a_cpu(tmp_path, rows):
    full, small = packed(tmp_path, rows)
    assert verify(small) == []
    assert not diff(full, small)
    with Table.open(full) as one, Table.open(small) as other:
        assert list(one.pairs()) == list(other.pairs())
        for pair in one.pairs():
            assert one.verdicts(*pair) == other.verdicts(*pair)
            assert one.record(*pair) == other.record(*pair)
            assert one.barred(*pair) == other.barred(*pair)
            for l2, known in itertools.product(("cold", "hot"), (None, "cpu-torch2.13", "cpu-torch2.9")):
                assert one.pooled(*pair, l2, known) == other.pooled(*pair, l2, known)
                assert one.verdict(*pair, l2, known) == other.verdict(*pair, l2, known)
        assert other.source == one.digest
    for m in (16, 24, 40):
        query = Query(KIT.problem.resized(m, 512, 512), KIT.device)
        assert steps(small, query, KIT.new, Policy(near_loss=1.0)) == steps(full, query, KIT.new, Policy(near_loss=1.0))


@FILES
@given(rows=KIT.rows(), seed=st.randoms())
def test_the_same_rows_give_the_same_bytes(tmp_path, rows, seed):
    shuffled = list(rows)
    seed.shuffle(shuffled)
    (_, a), (_, b) = packed(tmp_path, rows), packed(tmp_path, shuffled)
    assert a.read_bytes() == b.read_bytes()
