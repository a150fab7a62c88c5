"""Shipped files are what the manifest says, and of foreign ones those are used that GEMMDB_TRUST lists."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from kit import kernels
from kit.tables import names

from gemmdb import InputError, TableError, trust
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.settings import Settings
from gemmdb.table.catalog import Catalog

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shipped(home):
    path = Path(shutil.copy(ROOT / "tables" / "sm89-nvidia-l4.db", home / "shipped"))
    shutil.copy(ROOT / "tables" / "manifest.json", home / "shipped")
    return path


def test_a_shipped_table_is_used_as_the_manifest_describes_it(kit, shipped):
    """And no other, unless the folder is being made and has no manifest yet."""
    kit.write(shipped.with_name("more.db"), [])
    assert names(Catalog.load()) == [shipped.name]
    shipped.with_name("manifest.json").unlink()
    assert names(Catalog.load()) == ["more.db", shipped.name]


def test_a_shipped_table_with_one_other_bit_is_left_out_with_one_warning(shipped, caplog):
    torn = bytearray(shipped.read_bytes())
    torn[-5] ^= 1
    shipped.write_bytes(torn)
    assert names(Catalog.load()) == []
    (record,) = caplog.records
    assert "sm89-nvidia-l4.db is not the file that manifest.json describes; install gemmdb again" in record.message
    with pytest.raises(TableError, match="install gemmdb again"):
        Catalog.load(strict=True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tables": [1]}', "[" * 99_999, '{"tables": 5}'])
def test_without_a_manifest_that_can_be_read_nothing_is_used(shipped, text, caplog):
    shipped.with_name("manifest.json").write_text(text)
    assert names(Catalog.load()) == []
    assert "manifest.json is malformed" in caplog.records[0].message


@pytest.fixture
def foreign(kit, home, monkeypatch):
    """Tables of an argument, of the environment, pulled ones, and the user's own."""
    data = home / "data" / "gemmdb"
    for path in (home / "arg.db", home / "env.db", data / "pulled.db", data / "user.db"):
        kit.write(path, [kit.row()])
    monkeypatch.setenv("GEMMDB_TABLES", str(home / "env.db"))
    monkeypatch.setenv("GEMMDB_TRUST", str(home / "trusted"))
    return home


def load(home):
    return Catalog.load(tables=[home / "arg.db"])


def test_all_files_are_used_without_a_policy(foreign, monkeypatch):
    monkeypatch.delenv("GEMMDB_TRUST")
    assert names(load(foreign)) == ["arg.db", "env.db", "user.db", "pulled.db"]


def test_only_what_is_listed_and_the_users_own_table_are_used(foreign, caplog):
    (foreign / "trusted").write_text("# nothing\n\n")
    assert names(load(foreign)) == ["user.db"]
    assert len(caplog.records) == 3
    assert f"arg.db is not trusted: {foreign / 'trusted'} does not list its SHA-256" in caplog.text


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_what_sha256sum_prints_is_a_policy(foreign):
    files = ["env.db", "data/gemmdb/pulled.db"]
    done = subprocess.run(["sha256sum", *files], cwd=foreign, capture_output=True, text=True, check=True)
    (foreign / "trusted").write_text(done.stdout)
    assert names(load(foreign)) == ["env.db", "user.db", "pulled.db"]
    assert names(Catalog.load(Settings.read(), tables=[foreign / "arg.db"])) == ["env.db", "user.db", "pulled.db"]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_takes_the_place_of_a_trusted_one_is_not_used(kit, foreign):
    """Not by a process that has it open either."""
    path = foreign / "arg.db"
    (foreign / "trusted").write_text(digest(path))
    table, _ = load(foreign).tables
    assert table.verdict(kit.problem, kit.device) is not None
    table.close()
    kit.write(foreign / "other.db", [kit.row(), kit.row(kit.configs[1], us=1.0)]).replace(path)
    with pytest.raises(TableError, match="is not trusted"):
        table.verdict(kit.problem, kit.device)


def test_a_link_to_the_users_table_is_the_users_table(foreign, monkeypatch):
    (foreign / "trusted").touch()
    (foreign / "link.db").symlink_to(foreign / "data" / "gemmdb" / "user.db")
    monkeypatch.setenv("GEMMDB_TABLES", str(foreign / "link.db"))
    assert names(Catalog.load()) == ["link.db"]


@pytest.mark.parametrize("text", [None, "not a digest", "ab" * 31, "AB" * 32, f"{'ab' * 32}x", f"{'ab' * 32}\nx"])
def test_a_policy_that_cannot_be_read_is_an_error(foreign, text):
    """It fails closed, and names the line."""
    said = r"GEMMDB_TRUST=.*trusted: it cannot be read"
    if text is not None:
        (foreign / "trusted").write_text(text)
        said = r"trusted:\d: not a line that `sha256sum` prints"
    with pytest.raises(InputError, match=said):
        load(foreign)
    with pytest.raises(InputError, match=said):  # Even where it decides nothing.
        Catalog.load()


@pytest.fixture
def no_archive():
    """The archive of compiled kernels is opened once per process."""
    prebuilt.archive.cache_clear()
    yield
    prebuilt.archive.cache_clear()


def test_an_archive_of_kernels_that_is_not_the_listed_one_is_not_loaded(tmp_path, monkeypatch, no_archive):
    """It is code. One that was built on this machine is in no manifest."""
    path = kernels.archived(tmp_path)
    kernels.ship(monkeypatch, path)
    manifest = path.with_name("manifest.json")
    for sha256, used in ((digest(path), True), ("0" * 64, False)):
        prebuilt.archive.cache_clear()
        manifest.write_text(json.dumps({"tables": [], "kernels": [{"file": path.name, "sha256": sha256}]}))
        assert (prebuilt.archive() is not None) == used
    manifest.unlink()
    prebuilt.archive.cache_clear()
    assert prebuilt.archive() is not None


def test_a_file_is_read_again_when_it_has_changed(tmp_path):
    path = tmp_path / "x"
    for content in (b"a", b"bb"):
        path.write_bytes(content)
        assert trust.sha256_in_use(path) == digest(path)
