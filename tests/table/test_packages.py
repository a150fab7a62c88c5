"""Tables of installed packages: found by entry point, never imported, and a broken one costs a warning."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path

import pytest
from kit.tables import names

import gemmdb
from gemmdb.settings import Settings
from gemmdb.table import catalog
from gemmdb.table.catalog import Catalog, sources


@pytest.fixture
def site(kit, home, monkeypatch):
    """`site(name, files)` installs a package that names itself."""
    monkeypatch.syspath_prepend(str(home / "site"))
    catalog.packaged_tables.cache_clear()

    def install(name: str, tables=(), value: str | None = None, code: str = "") -> Path:
        folder, info = home / "site" / name, home / "site" / f"{name}-1.0.dist-info"
        for made in (folder, info):
            made.mkdir(parents=True)
        (folder / "__init__.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{catalog.GROUP}]\nx = {name if value is None else value}\n")
        for table in tables:
            kit.write(folder / table, [kit.row()])
        catalog.packaged_tables.cache_clear()
        importlib.invalidate_caches()
        return folder

    yield install
    catalog.packaged_tables.cache_clear()


def test_its_tables_come_after_the_users_and_before_the_shipped(kit, home, site):
    before = Catalog.load().identity()
    folder = site("gemmdb_tables_a", ["b.db", "a.db"])
    assert Catalog.load().identity() != before
    kit.write(home / "data" / "gemmdb" / "user.db", [kit.row()])
    kit.write(home / "shipped" / "s.db", [kit.row()])
    found = sources(Settings.read())
    assert [(source.path.name, source.origin) for source in found] == [
        ("user.db", "user"), ("a.db", "package"), ("b.db", "package"), ("s.db", "shipped"),
    ]  # fmt: skip
    assert found[1].path == folder / "a.db"
    assert names(Catalog.load()) == ["user.db", "a.db", "b.db", "s.db"]


def test_it_is_not_imported_and_read_once(home, site, monkeypatch):
    site("gemmdb_tables_a", ["a.db"], code=f"open({str(home / 'ran')!r}, 'w')\nraise SystemExit\n")
    assert [path.name for path in catalog.packaged_tables()] == ["a.db"]
    assert "gemmdb_tables_a" not in sys.modules
    assert not (home / "ran").exists()
    monkeypatch.setattr(metadata, "distributions", lambda: pytest.fail("read again"))
    for _ in range(3):
        Catalog.load()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("gemmdb_tables_none", "there is no such package"),
        ("a.b.c", "must be the name of a package"),
        ("gemmdb_tables_a:tables", "must be the name of a package"),
        ("os; import x", "must be the name of a package"),
        ("json.tool", "must be the name of a package"),
        ("gemmdb_tables_a", "it contains no .db file"),
        ("this", "there is no such package"),
    ],
)
def test_a_broken_entry_point_costs_one_warning(site, caplog, value, said):
    site("gemmdb_tables_a", [], value=value)
    site("gemmdb_tables_b", ["b.db"])
    for _ in range(3):
        assert names(Catalog.load()) == ["b.db"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert said in record.message


def test_metadata_that_cannot_be_read_cost_one_warning(site, caplog, monkeypatch):
    def broken():
        raise RuntimeError("no\nmetadata")

    monkeypatch.setattr(metadata, "distributions", broken)
    catalog.packaged_tables.cache_clear()
    assert Catalog.load().tables == ()
    assert Catalog.load().tables == ()
    (record,) = caplog.records
    assert "cannot be listed (RuntimeError: no metadata)" in record.message


def test_importing_gemmdb_reads_none():
    import subprocess

    code = "import sys, gemmdb; print('importlib.metadata' in sys.modules, 'gemmdb.table.catalog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_lookup_answers_from_it(kit, site, monkeypatch):
    monkeypatch.setattr("gemmdb.lookup.environment.shipped_tables", lambda: Path("/nowhere"))
    folder = site("gemmdb_tables_a")
    kit.write(folder / "a.db", [kit.row(), kit.row(kit.configs[1], us=5.0)])
    catalog.packaged_tables.cache_clear()
    hit = gemmdb.lookup(kit.problem, kit.device.sku)
    assert hit is not None
    assert (hit.rung, hit.config, hit.table) == ("exact", kit.configs[1], str(folder / "a.db"))
