"""The table of the migration library in a file from a stranger: it computes nothing when SQLite reads or checks it."""

import pytest
from kit.tables import edit

from gemmdb import TableError
from gemmdb.table.reader import Table

OWN = "CREATE TABLE _sqlite_migrations (name TEXT, migration_set TEXT)"
COMPUTING = {
    "index over an expression": (OWN, "CREATE INDEX bomb ON _sqlite_migrations(name NOT LIKE '%' || name)"),
    "index over a function": (OWN, "CREATE INDEX bomb ON _sqlite_migrations(hex(name))"),
    "index over words": (OWN, "CREATE INDEX bomb ON _sqlite_migrations(name LIKE migration_set)"),
    "index of some rows": (OWN, "CREATE INDEX bomb ON _sqlite_migrations(name) WHERE name NOT NULL"),
    "column of its own": ("CREATE TABLE _sqlite_migrations (name TEXT, x AS (hex(zeroblob(30000))))",),
    "column of another": ("CREATE TABLE _sqlite_migrations (name TEXT, x AS (name))",),
    "stored column": ("CREATE TABLE _sqlite_migrations (name TEXT, x TEXT GENERATED ALWAYS AS (name) STORED)",),
    "check": ("CREATE TABLE _sqlite_migrations (name TEXT CHECK (name))",),
    "long statement": (f"CREATE TABLE _sqlite_migrations ({', '.join(f'c{n} TEXT' for n in range(500))})",),
}


@pytest.mark.parametrize("statements", COMPUTING.values(), ids=COMPUTING)
def test_the_table_of_the_migrations_computes_nothing(path, statements):
    edit(path, "DROP TABLE _sqlite_migrations", *statements)
    with pytest.raises(TableError, match="that no gemmdb table has"):
        Table.open(path)


@pytest.mark.parametrize(
    "statements",
    [
        (OWN, "CREATE UNIQUE INDEX one ON _sqlite_migrations (name, migration_set)"),
        ('CREATE TABLE "_sqlite_migrations" (\n "name" TEXT,\n "id" TEXT, PRIMARY KEY ("id", "name")\n)',),
        ("CREATE TABLE _sqlite_migrations (id INTEGER PRIMARY KEY, name TEXT NOT NULL, UNIQUE (name))",),
    ],
    ids=["index", "key", "unique"],
)  # fmt: skip
def test_other_versions_of_that_table_are_fine(kit, path, statements):
    edit(path, "DROP TABLE _sqlite_migrations", *statements)
    with Table.open(path) as table:
        assert table.verdict(kit.problem, kit.device)
