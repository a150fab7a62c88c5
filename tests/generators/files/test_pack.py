"""Packing: the same answers from a small file, the same bytes for the same rows, and plain words for what is gone."""

import itertools
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.devices import H200
from kit.gpu import ALGORITHM, make
from kit.lab import Lab
from kit.tables import GEMM, SIZES, Kit, edit, tile

from gemmdb.errors import InputError, TableError
from gemmdb.generators.files import pack as packing
from gemmdb.generators.files.diff import diff
from gemmdb.generators.files.merge import merge
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
from gemmdb.table import packed_records, schema
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table
from gemmdb.table.record import UNKNOWN
from gemmdb.table.writer import Store

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
    catalog = Catalog.load(Settings((), path.with_name("user.db"), "aten", False, ""), tables=[path])
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


@pytest.fixture
def full(tmp_path):
    times = list(zip(KIT.configs, (10.0, 5.0, 7.0, 9.0), strict=True))
    rows = [KIT.row(config, us, problem=problem) for problem in KIT.problems for config, us in times]
    return KIT.write(tmp_path / "full.db", rows)


@pytest.fixture
def small(full, tmp_path):
    done = pack(full, tmp_path / "small.db")
    assert done == packing.Packed(3, 12, 12)
    return tmp_path / "small.db"


def test_what_needs_measurements_says_so(small, tmp_path):
    for call in (
        lambda: list(Table.open(small).measurements()),
        lambda: Table.open(small).rows(KIT.problem, KIT.device),
        lambda: Store.open(small),
        lambda: merge([small], tmp_path / "out.db"),
        lambda: pack(small, tmp_path / "out.db"),
    ):
        with pytest.raises(TableError, match=r"small\.db is packed.*the table that it was packed from"):
            call()
    assert not (tmp_path / "out.db").exists()


def test_a_damaged_record_leaves_its_problem_out_with_one_warning(small, caplog):
    damaged = KIT.problems[1]
    edit(small, f"UPDATE record SET data = x'0301010000000000' WHERE problem = {damaged.key}")
    query = Query(KIT.problem.resized(24, 512, 512), KIT.device)
    catalog = Catalog([(Source(small, "explicit"), Table.open(small))])
    with caplog.at_level(logging.WARNING, "gemmdb"):
        near = next(step for step in explain(query, catalog, Policy(near_loss=1.0)) if step.rung == "near")
    assert near.hit is not None
    others = {KIT.problems[0].text, KIT.problems[2].text}
    assert {one["problem"] for one in near.evidence["neighbours"]} == others
    assert len([one for one in caplog.messages if "record" in one]) == 1
    assert explain(Query(damaged, KIT.device), catalog, Policy())[0].hit is None
    other = explain(Query(KIT.problems[0], KIT.device), catalog, Policy())[0]
    assert other.hit is not None
    assert other.hit.config == KIT.configs[1]


@pytest.mark.parametrize(
    ("sql", "check"),
    [
        ("UPDATE record SET data = x'0105'", "record"),
        ("UPDATE record SET data = zeroblob(8)", "record"),
        ("UPDATE record SET data = 'text'", "record"),
        ("UPDATE record SET problem = 5", "record"),
        ("UPDATE record SET problem = 'x'", "record"),
        ("UPDATE record SET device = 1", "record"),
        ("UPDATE record SET family = 'x'", "record"),
        ("UPDATE record SET m = m + 1", "record"),
        ("UPDATE record SET batch = 2", "record"),
        ("DELETE FROM record WHERE m = (SELECT min(m) FROM record)", "digest"),
        ("UPDATE numbering SET data = x'05'", "text"),
        ("UPDATE numbering SET data = x'05' WHERE name = 'configs'", "text"),
        ("DELETE FROM numbering WHERE name = 'contexts'", "text"),
        ("DELETE FROM numbering", "text"),
        ("DELETE FROM protocol", "text"),
        ("UPDATE toolchain SET id = id + 1", "text"),
        ("UPDATE meta SET value = printf('%032d', 0) WHERE name = 'digest'", "digest"),
    ],
)
def test_verify_finds_what_was_changed(small, sql, check):
    edit(small, sql)
    found = verify(small)
    assert check in {one.check for one in found}
    assert all("\n" not in one.message for one in found)


@pytest.mark.parametrize(
    ("table", "sql", "message"),
    [
        ("small", "UPDATE meta SET value = '2' WHERE name = 'packed'", "malformed"),
        ("full", "PRAGMA user_version = 1", "holds a table"),  # A table of version 1 has no table of records.
        ("full", "PRAGMA user_version = 3", "holds a"),  # A packed table has no measurements.
        ("small", "PRAGMA user_version = 2", "holds a table"),
        ("small", "DELETE FROM meta WHERE name = 'packed'", "does not fit its version"),
        ("small", "PRAGMA user_version = 4", "upgrade gemmdb"),
    ],
)
def test_a_malformed_header_is_refused(full, small, table, sql, message):
    path = {"full": full, "small": small}[table]
    edit(path, sql)
    with pytest.raises(TableError, match=message):
        Table.open(path)


def test_a_table_that_an_older_version_packed_is_refused_with_a_remedy(full):
    edit(full, "INSERT INTO meta VALUES ('packed', '1'), ('source', printf('%032d', 0))")
    with pytest.raises(TableError, match="was packed by an older gemmdb; pack the table"):
        Table.open(full)


def test_a_pick_without_a_time_and_a_record_that_hides_its_verdicts_are_found(full, tmp_path, monkeypatch):
    for name, change in (("measured", lambda verdicts: 0), ("pack", without_times)):
        with monkeypatch.context() as patch:
            patch.setattr(packed_records, name, change)
            pack(full, tmp_path / "out.db")
        assert {one.check for one in verify(tmp_path / "out.db")} == {"verdict"}


def without_times(record, *rest, real=packed_records.pack):
    """A packed record that has only the times of ATen."""
    groups = (replace(one, times=tuple(t for t in one.times if t.entry.aten)) for one in record.groups)
    return real(replace(record, groups=tuple(groups)), *rest)


def test_outdated_verdicts_are_not_packed(full, tmp_path):
    with Store.open(full) as store:
        store.add([KIT.row(run="later")])
    with pytest.raises(TableError, match=r"outdated verdicts.*gemmdb merge"):
        pack(full, tmp_path / "out.db")
    assert not (tmp_path / "out.db").exists()
    assert [one.name for one in tmp_path.iterdir() if one.name.endswith(".part")] == []


def test_too_many_configs_are_refused_with_a_remedy(full, tmp_path, monkeypatch):
    monkeypatch.setattr("gemmdb.table.numbering.MOST_NUMBERS", 3)
    with pytest.raises(InputError, match=r"full\.db: 4 configs exceed the 3"):
        pack(full, tmp_path / "out.db")


def older(path: Path) -> Path:
    """The table as schema version 1 has it."""
    edit(
        path,
        *(f"DROP TABLE {name}" for name in schema.ADDED[2]),
        "DELETE FROM _sqlite_migrations WHERE name LIKE 'm002%'",
        "UPDATE meta SET value = '1' WHERE name = 'schema_version'",
        "PRAGMA user_version = 1",
    )
    return path


def test_a_table_of_version_1_is_read_packed_and_brought_up_to_date(full, small, tmp_path):
    before = KIT.content(full)
    old = older(full)
    assert verify(old) == []
    assert KIT.content(old) == before
    with Table.open(old) as table:
        assert [one["schema_version"] for one in table.summary()] == [1]
    pack(old, tmp_path / "again.db")
    assert (tmp_path / "again.db").read_bytes() == small.read_bytes()
    with Store.open(old) as store:
        assert store.add([KIT.row(run="new")]) == 1
        store.refresh()
    with Table.open(old) as table:
        assert table.version == 2
        assert len(table.rows(KIT.problem, KIT.device)) == 5
    assert verify(old) == []


def test_tables_of_both_versions_answer_together(full, tmp_path):
    user = older(KIT.write(tmp_path / "user.db", [KIT.row(problem=KIT.problem.resized(20, 512, 512))]))
    with Store.open(tmp_path / "rest.db") as store:
        store.add([KIT.row(config, us) for config, us in zip(KIT.configs[:2], (10.0, 5.0), strict=True)])
        store.refresh()
    pack(tmp_path / "rest.db", tmp_path / "small.db")
    catalog = Catalog.load(Settings((), user, "aten", False, ""), tables=[tmp_path / "small.db"])
    query = Query(KIT.problem.resized(18, 512, 512), KIT.device)
    near = next(step for step in explain(query, catalog, Policy(near_loss=1.0)) if step.rung == "near")
    tables = {one["table"] for one in near.evidence["neighbours"]}
    assert tables == {str(user), str(tmp_path / "small.db")}
