"""Which tables are in force, in which order, and which device a name stands for."""

from __future__ import annotations

import logging
import os
import shutil

import pytest
from kit.tables import edit, names

from gemmdb import Device, InputError, TableError
from gemmdb.devices import detect
from gemmdb.settings import Settings
from gemmdb.table.catalog import Catalog, sources
from gemmdb.table.writer import Store, record_live


def test_the_order_is_explicit_environment_user_shipped(kit, home, monkeypatch):
    for name in ("arg.db", "env1.db", "env2.db", "data/gemmdb/a.db", "data/gemmdb/user.db", "data/gemmdb/notes.txt",
                 "shipped/sm90.db"):  # fmt: skip
        kit.write(home / name, [])
    monkeypatch.setenv("GEMMDB_TABLES", os.pathsep.join([str(home / "env2.db"), str(home / "env1.db")]))
    found = Catalog.load(tables=[home / "arg.db"])
    assert names(found) == ["arg.db", "env2.db", "env1.db", "user.db", "a.db", "sm90.db"]
    assert [s.origin for s in sources(Settings.read())] == ["explicit"] * 2 + ["user"] * 2 + ["shipped"]


def test_one_file_under_two_names_is_opened_once(kit, home, monkeypatch):
    path = kit.write(home / "data" / "gemmdb" / "user.db", [])
    (home / "link.db").symlink_to(path)
    monkeypatch.setenv("GEMMDB_TABLES", str(home / "link.db"))
    assert names(Catalog.load()) == ["link.db"]


def test_no_tables_and_one_that_is_only_begun_are_no_faults(home, caplog):
    assert Catalog.load(strict=True).tables == ()
    (home / "data" / "gemmdb" / "begun.db").touch()
    assert Catalog.load(strict=True).tables == ()
    assert caplog.messages == []


def test_a_broken_table_is_left_out_with_one_warning(kit, home, caplog, monkeypatch):
    good = kit.write(home / "good.db", [])
    (home / "bad.db").write_text("not a table " * 100)
    monkeypatch.setenv("GEMMDB_TABLES", os.pathsep.join([str(home / "bad.db"), str(good), str(home / "none.db")]))
    with caplog.at_level(logging.WARNING, "gemmdb"):
        for _ in range(3):
            assert names(Catalog.load()) == ["good.db"]
    assert [message.split(" ")[0] for message in caplog.messages] == [str(home / "bad.db"), str(home / "none.db")]
    with pytest.raises(TableError, match=r"bad\.db is not a SQLite file"):
        Catalog.load(strict=True)


def test_a_table_that_appears_is_seen_by_the_next_load(kit, home):
    before = Catalog.load()
    kit.write(home / "data" / "gemmdb" / "new.db", [])
    assert (names(before), names(Catalog.load())) == ([], ["new.db"])


def test_catalogs_share_a_shipped_table_until_its_file_changes(kit, home):
    shipped = kit.write(home / "shipped" / "sm90.db", [kit.row()])
    first, second = Catalog.load(), Catalog.load()
    kit.write(home / "data" / "gemmdb" / "user.db", [])  # As a compile that stores rows.
    third = Catalog.load()
    assert first.tables[0] is second.tables[0] is third.tables[-1]
    first.close()
    assert second.tables[0].verdict(kit.problem, kit.device)
    shipped.unlink()
    kit.write(shipped, [])
    assert Catalog.load().tables[-1].verdict(kit.problem, kit.device) is None
    shipped.write_text("not a table")
    assert names(Catalog.load()) == ["user.db"]


def test_the_identity_follows_explicit_rows_and_the_users_generation(kit, home):
    explicit = kit.write(home / "explicit.db", [kit.row()])
    user = kit.write(home / "data" / "gemmdb" / "user.db", [kit.row()])

    def identity():
        return Catalog.load(tables=[explicit]).identity()

    first = identity()
    assert identity() == first
    record_live(user, [kit.row(run="live-1")])
    assert identity() == first
    kit.write(user, [kit.row(run="run-2")])
    second = identity()
    record_live(explicit, [kit.row(run="live-2")])
    assert len({first, second, identity()}) == 3


@pytest.mark.parametrize("named", [False, True])
def test_a_users_table_that_only_live_tuning_wrote_leaves_the_identity_alone(kit, home, named):
    """Also where it is named, and before it exists."""
    user = Settings.read().user_table
    tables = [user.parent / ".." / user.parent.name / user.name] if named else []
    before = Catalog.load(tables=tables, strict=True).identity()
    record_live(user, [kit.row()])
    assert names(Catalog.load(tables=tables)) == ["user.db"]
    assert Catalog.load(tables=tables).identity() == before
    kit.write(user, [kit.row(run="run-2")])
    assert Catalog.load(tables=tables).identity() != before


def test_the_identity_follows_the_content_the_order_and_the_users_file(kit, home):
    rows = [kit.row(), kit.row(kit.configs[1], 5.0)]
    a, b = kit.write(home / "a.db", rows), kit.write(home / "b.db", [kit.row(run="run-2")])
    assert Catalog.load(tables=[a, b]).identity() != Catalog.load(tables=[b, a]).identity()
    again = kit.write(home / "again.db", rows[::-1])
    assert Catalog.load(tables=[a]).identity() == Catalog.load(tables=[again]).identity()
    user, identities = home / "data" / "gemmdb" / "user.db", set()
    for rows in ([kit.row()], [kit.row(kit.configs[1])]):
        kit.write(user, rows)
        identities.add(Catalog.load().identity())
        user.unlink()
    assert len(identities) == 2


def test_copies_of_a_users_table_that_were_built_further_apart_differ(kit, home):
    user, copy = home / "data" / "gemmdb" / "user.db", home / "copy.db"
    shutil.copy(kit.write(user, []), copy)
    kit.write(user, [kit.row(), kit.row(kit.configs[1], 5.0)])
    kit.write(copy, [kit.row(), kit.row(kit.configs[1], 50.0)])
    first = Catalog.load().identity()
    copy.replace(user)
    assert Catalog.load().identity() != first


def test_rows_without_verdicts_yet_do_not_change_the_identity(kit, home):
    path = kit.write(home / "a.db", [kit.row()])
    before = Catalog.load(tables=[path]).identity()
    with Store.open(path) as store:
        store.add([kit.row(run="run-2")])
        assert Catalog.load(tables=[path]).identity() == before
        store.refresh()
    assert Catalog.load(tables=[path]).identity() != before


def test_a_name_is_resolved_to_the_device_of_the_tables(kit, home, monkeypatch):
    small = Device("cuda", "sm90", "NVIDIA H20", 78, 96)
    native = Device("cpu", "cpu", "This CPU", 4)
    monkeypatch.setattr(detect, "native", lambda: native)
    first = kit.write(home / "a.db", [kit.row(device=small), kit.row(device=kit.device)])
    found = Catalog.load(tables=[first, kit.write(home / "b.db", [kit.row(device=kit.other)])])
    assert found.resolve(None) == native
    assert found.resolve("nvidia h200") == kit.other
    assert found.resolve("sm90") == small
    assert found.resolve("SM90") == small
    assert found.resolve("this cpu") == native
    assert found.resolve("cpu") == kit.device
    assert found.resolve("Test CPU").figures == kit.device.figures
    assert found.resolve("sm75").sku == "Tesla T4", "known although no table has it"
    with pytest.raises(InputError, match=r"unknown device 'sm11'; known: .*Test CPU, This CPU, cpu, sm"):
        found.resolve("sm11")
    with pytest.raises(InputError, match=r"unknown device 'H200'; did you mean 'NVIDIA H200'\?$"):
        Catalog.load(tables=[]).resolve("H200")


def test_a_table_that_cannot_name_its_devices_is_left_out_with_one_warning(kit, home, caplog):
    broken = kit.write(home / "a.db", [kit.row()])
    edit(broken, "UPDATE device SET text = 'nothing like a device'")
    found = Catalog.load(tables=[broken, kit.write(home / "b.db", [kit.row(device=kit.other)])])
    for _ in range(2):
        assert found.resolve("nvidia h200") == kit.other
    assert len([record for record in caplog.records if str(broken) in record.getMessage()]) == 1


def test_of_one_arch_this_machines_own_device_comes_first(kit, home, monkeypatch):
    monkeypatch.setattr(detect, "native", lambda: kit.other)
    small = Device("cuda", "sm90", "NVIDIA H20", 78, 96)
    found = Catalog.load(tables=[kit.write(home / "a.db", [kit.row(device=small), kit.row(device=kit.other)])])
    assert found.resolve("sm90") == kit.other
    assert Catalog.load().resolve("sm90") == kit.other
