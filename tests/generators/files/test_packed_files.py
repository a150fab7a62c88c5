"""Files of packed tables: what packing refuses, damaged and malformed ones, and those of older versions."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from kit.tables import Kit, edit

from gemmdb.errors import InputError, TableError
from gemmdb.generators.files import pack as packing
from gemmdb.generators.files.merge import merge
from gemmdb.generators.files.pack import pack
from gemmdb.generators.files.verify import verify
from gemmdb.key.problem import Query
from gemmdb.lookup import explain
from gemmdb.settings import Policy, Settings
from gemmdb.table import packed_records, schema
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

KIT = Kit()


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
    """The table as a gemmdb of schema version 1 made it."""
    edit(
        path,
        *(f"DROP TABLE {name}" for name in schema.ADDED[2]),
        "CREATE TABLE _sqlite_migrations (id INTEGER PRIMARY KEY, migration_set TEXT, name TEXT, applied_at TEXT)",
        "INSERT INTO _sqlite_migrations VALUES (1, 'gemmdb', 'm001_initial', '2026-07-04 12:00:00.000000+00:00')",
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
    catalog = Catalog.load(Settings((), user, "aten"), tables=[tmp_path / "small.db"])
    query = Query(KIT.problem.resized(18, 512, 512), KIT.device)
    near = next(step for step in explain(query, catalog, Policy(near_loss=1.0)) if step.rung == "near")
    tables = {one["table"] for one in near.evidence["neighbours"]}
    assert tables == {str(user), str(tmp_path / "small.db")}
