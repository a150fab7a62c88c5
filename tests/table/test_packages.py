"""Tables of installed packages: found by entry point, never imported, and a broken one costs a warning."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path

import pytest
from kit.tables import Kit

import gemmdb
from gemmdb.settings import Settings
from gemmdb.table import catalog
from gemmdb.table.catalog import Catalog, sources

KIT = Kit()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages. `site(name, files)` installs one that names itself."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("GEMMDB_TABLES", "GEMMDB_USER_TABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(catalog, "shipped_tables", lambda: tmp_path / "shipped")
    monkeypatch.setattr(catalog, "_warned", set())
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    catalog.packaged_tables.cache_clear()

    def install(name: str, tables=(), value: str | None = None, code: str = "") -> Path:
        folder, info = tmp_path / "site" / name, tmp_path / "site" / f"{name}-1.0.dist-info"
        for made in (folder, info):
            made.mkdir(parents=True)
        (folder / "__init__.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{catalog.GROUP}]\nx = {name if value is None else value}\n")
        for table in tables:
            KIT.write(folder / table, [KIT.row()])
        catalog.packaged_tables.cache_clear()
        importlib.invalidate_caches()
        return folder

    yield install
    catalog.packaged_tables.cache_clear()


def test_its_tables_come_after_the_users_and_before_the_shipped(site, tmp_path):
    folder = site("gemmdb_tables_a", ["b.db", "a.db"])
    KIT.write(tmp_path / "data" / "gemmdb" / "user.db", [KIT.row()])
    KIT.write(tmp_path / "shipped" / "s.db", [KIT.row()])
    found = sources(Settings.read())
    assert [(source.path.name, source.origin) for source in found] == [
        ("user.db", "user"), ("a.db", "package"), ("b.db", "package"), ("s.db", "shipped"),
    ]  # fmt: skip
    assert found[1].path == folder / "a.db"
    assert [table.path.name for table in Catalog.load().tables] == ["user.db", "a.db", "b.db", "s.db"]


def test_its_table_is_part_of_the_identity(site):
    before = Catalog.load().identity()
    site("gemmdb_tables_a", ["a.db"])
    assert Catalog.load().identity() != before


def test_it_is_not_imported(site, tmp_path):
    site("gemmdb_tables_a", ["a.db"], code=f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit\n")
    assert [path.name for path in catalog.packaged_tables()] == ["a.db"]
    assert "gemmdb_tables_a" not in sys.modules
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("gemmdb_tables_none", "there is no such package"),
        ("a.b.c", "must be the name of a package"),
        ("gemmdb_tables_a:tables", "must be the name of a package"),
        ("os; import x", "must be the name of a package"),
        ("json.tool", "must be the name of a package"),
        ("gemmdb_tables_a", "it holds no .db file"),
        ("this", "there is no such package"),
    ],
)
def test_a_broken_entry_point_costs_one_warning(site, caplog, value, said):
    site("gemmdb_tables_a", [], value=value)
    site("gemmdb_tables_b", ["b.db"])
    for _ in range(3):
        assert [table.path.name for table in Catalog.load().tables] == ["b.db"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert said in record.message


def test_a_broken_table_costs_one_warning(site, caplog):
    folder = site("gemmdb_tables_a", ["a.db"])
    (folder / "b.db").write_text("no table")
    for _ in range(3):
        assert [table.path.name for table in Catalog.load().tables] == ["a.db"]
    (record,) = caplog.records
    assert "b.db" in record.message


def test_metadata_that_cannot_be_read_cost_one_warning(site, caplog, monkeypatch):
    def broken():
        raise RuntimeError("no\nmetadata")

    monkeypatch.setattr(metadata, "distributions", broken)
    catalog.packaged_tables.cache_clear()
    assert Catalog.load().tables == ()
    assert Catalog.load().tables == ()
    (record,) = caplog.records
    assert "cannot be listed (RuntimeError: no metadata)" in record.message


def test_entry_points_are_read_once(site, monkeypatch):
    site("gemmdb_tables_a", ["a.db"])
    catalog.packaged_tables()
    monkeypatch.setattr(metadata, "distributions", lambda: pytest.fail("read again"))
    for _ in range(3):
        Catalog.load()


def test_importing_gemmdb_reads_none():
    import subprocess

    code = "import sys, gemmdb; print('importlib.metadata' in sys.modules, 'gemmdb.table.catalog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_lookup_answers_from_it(site, monkeypatch):
    monkeypatch.setattr("gemmdb.lookup.environment.shipped_tables", lambda: Path("/nowhere"))
    rows = [KIT.row(), KIT.row(KIT.configs[1], us=5.0)]
    folder = site("gemmdb_tables_a")
    KIT.write(folder / "a.db", rows)
    catalog.packaged_tables.cache_clear()
    hit = gemmdb.lookup(KIT.problem, KIT.device.sku)
    assert hit is not None
    assert (hit.rung, hit.config, hit.table) == ("exact", KIT.configs[1], str(folder / "a.db"))
