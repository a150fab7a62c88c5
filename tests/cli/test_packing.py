"""`gemmdb tables pack`, and what other commands say of a packed table."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def small(gemmdb, make_table):
    make_table("a.db")
    done = gemmdb("tables", "pack", "a.db", "--out", "small.db")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("gemmdb: small.db: 2 times of 1 problem, from ")
    return Path("small.db")


def test_a_packed_table_is_listed_and_checked(gemmdb, small, monkeypatch):
    monkeypatch.setenv("GEMMDB_TABLES", str(small))
    (entry,) = [one for one in json.loads(gemmdb("tables", "--json").out)["tables"] if one["path"].endswith("small.db")]
    assert (entry["packed"], entry["measurements"], entry["problems"]) == (True, 2, {"mm": 1})
    assert "2 (packed)" in gemmdb("tables").out
    assert gemmdb("verify", "small.db").code == 0
    assert gemmdb("diff", "a.db", "small.db").out == "both tables hold the same measurements and verdicts\n"


def test_verdicts_of_a_packed_table_are_exported(gemmdb, small):
    assert gemmdb("export", "small.db", "--to", "verdicts", "--out", "small.csv").code == 0
    assert gemmdb("export", "a.db", "--to", "verdicts", "--out", "a.csv").code == 0
    assert Path("small.csv").read_text() == Path("a.csv").read_text()


@pytest.mark.parametrize("command", [
    "merge small.db --out other.db", "tables pack small.db --out other.db", "export small.db --to csv --out other.csv",
    "export small.db --to jsonl --out other.jsonl", "export small.db --to parquet --out other.parquet",
])  # fmt: skip
def test_what_needs_measurements_names_the_remedy(gemmdb, small, command):
    words = ["small.db is packed", "the table that it was packed from"]
    if command.startswith("export"):
        words.append("--to verdicts and --to lookup-table export its verdicts")
    gemmdb(*command.split()).refused(*words)
    assert not list(Path().glob("other.*"))


def test_the_same_table_is_packed_to_the_same_bytes(gemmdb, small):
    former = small.read_bytes()
    assert gemmdb("tables", "pack", "a.db", "--out", "small.db").code == 0
    assert small.read_bytes() == former
