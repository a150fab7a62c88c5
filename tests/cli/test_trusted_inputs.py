"""With GEMMDB_TRUST, only listed files get into the user's own table, which lookups use without a listing."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from kit.tables import Kit

from gemmdb.cli.app import run
from gemmdb.settings import Settings

KIT = Kit()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own table, under a policy that lists nothing yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("GEMMDB_TRUST", str(tmp_path / "trusted"))
    monkeypatch.delenv("GEMMDB_USER_TABLE", raising=False)
    (tmp_path / "trusted").touch()
    path = Settings.read().user_table
    path.parent.mkdir(parents=True)
    return KIT.write(path, [KIT.row()])


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    return KIT.write(tmp_path / "foreign.db", [KIT.row(KIT.configs[1], us=5.0)])


@pytest.fixture
def rows(foreign: Path, tmp_path: Path) -> Path:
    """The same rows in another format."""
    assert run(["export", str(foreign), "--to", "jsonl", "--out", str(tmp_path / "rows.jsonl")]) == 0
    return tmp_path / "rows.jsonl"


def merging(foreign: Path, rows: Path, out: Path) -> tuple[Path, list[str]]:
    return foreign, ["merge", str(out), str(foreign), "--out", str(out)]


def importing(foreign: Path, rows: Path, out: Path) -> tuple[Path, list[str]]:
    return rows, ["import", str(rows), "--from", "jsonl", "-o", str(out)]


def follow(said: str) -> None:
    """Do what a message advises."""
    subprocess.run(said.split("`")[1], shell=True, check=True)


@pytest.mark.parametrize("what", [merging, importing])
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_gets_into_the_own_table_only_if_it_is_listed(own, foreign, rows, what, linked, tmp_path, capsys):
    out = own
    if linked:
        out = tmp_path / "link.db"
        out.symlink_to(own)
    file, words = what(foreign, rows, out)
    before = own.read_bytes()
    assert run(words) == 2
    said = capsys.readouterr().err
    assert f"{file} is not trusted: {tmp_path / 'trusted'} does not list its SHA-256" in said
    assert said.count("\n") == 1
    assert own.read_bytes() == before
    follow(said)
    assert hashlib.sha256(file.read_bytes()).hexdigest() in (tmp_path / "trusted").read_text()
    assert run(words) == 0
    assert own.read_bytes() != before


@pytest.mark.parametrize("what", [merging, importing])
def test_other_tables_take_any_file_since_lookups_compare_them(own, foreign, rows, what, tmp_path):
    out = KIT.write(tmp_path / "other.db", [KIT.row()])
    assert run(what(foreign, rows, out)[1]) == 0


@pytest.mark.parametrize("what", [merging, importing])
def test_without_a_policy_any_file_is_taken(own, foreign, rows, what, monkeypatch):
    monkeypatch.delenv("GEMMDB_TRUST")
    assert run(what(foreign, rows, own)[1]) == 0


def test_a_packed_table_does_not_take_the_place_of_the_own_one(own, foreign, capsys):
    own.unlink()
    assert run(["tables", "pack", str(foreign), "--out", str(own)]) == 2
    assert "is not trusted" in capsys.readouterr().err
    assert not own.exists()


def test_a_pull_does_not_put_a_file_there(own, foreign, tmp_path, capsys):
    pytest.importorskip("fsspec")
    own.unlink()
    named = Path(shutil.copy(foreign, tmp_path / own.name))
    (tmp_path / "server").mkdir()
    assert run(["tables", "push", str(tmp_path / "server"), str(named)]) == 0
    assert run(["tables", "pull", str(tmp_path / "server")]) == 2
    said = capsys.readouterr().err
    assert "is not trusted" in said
    assert not own.exists()
    follow(said)
    assert run(["tables", "pull", str(tmp_path / "server")]) == 0
    assert own.exists()


def test_a_policy_that_cannot_be_read_is_an_error(own, foreign, rows, tmp_path, capsys):
    (tmp_path / "trusted").unlink()
    assert run(merging(foreign, rows, own)[1]) == 2
    assert "GEMMDB_TRUST" in capsys.readouterr().err
